"""DeepSeek V2 and V3, and what is built like them (R1, Kimi K2, GLM-4.7 Flash, Youtu): attention over latents, experts.

V3's experts are those that GLM-4.5 took over; V2's are chosen by a softmax, and a group is as good as its best expert.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kernels.route import Rule
from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.latent_attention import LatentAttention, LatentConfig
from model_svc.layers.loader import Loader
from model_svc.layers.rope import RopeConfig, score_factor
from model_svc.models.decoder import KvShape
from model_svc.models.glm4_moe import Glm4Moe


class DeepseekV3(Glm4Moe):
    """DeepseekV3ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            LatentAttention(loader.at("self_attn"), self.latents(), self.rope()),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

    def latents(self) -> LatentConfig:
        """Return the sizes of attention. Raises ValueError for one that is missing."""
        config = self.config
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        kv_rank, nope_dim, rope_dim, value_dim = sizes = [config.whole(name) for name in names]
        if not all(sizes):
            raise ValueError(f"{names[sizes.index(0)]} must be positive: attention over latents has no use for 0")
        return LatentConfig(
            hidden=config.hidden_size,
            num_heads=config.num_heads,
            kv_rank=kv_rank,
            q_rank=config.whole("q_lora_rank"),
            nope_dim=nope_dim,
            rope_dim=rope_dim,
            value_dim=value_dim,
            scale=(nope_dim + rope_dim) ** -0.5 * score_factor(self.rope_config()),
            interleaved=bool(config.get("rope_interleave", True)),
            bias=bool(config.get("attention_bias", False)),
        )

    def kv_shapes(self) -> list[KvShape]:
        """Return what each layer of this rank keeps per token: one line, whichever heads are the rank's."""
        return [KvShape(1, self.latents().line, tensors=1)] * len(self.state_shapes())

    def rope_config(self, layer_type: str | None = None) -> RopeConfig:
        """Return what the rotary tables are made of; the part of a head that is rotated has a size of its own."""
        return replace(super().rope_config(layer_type), dim=self.config.whole("qk_rope_head_dim"))

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 1.0


class DeepseekV2(DeepseekV3):
    """DeepseekV2ForCausalLM."""

    biased_choice: ClassVar[bool] = False
    renormalises: ClassVar[bool] = False

    def rule(self) -> Rule:
        """Return how the router's logits become choices. Raises ValueError for a way that is not known."""
        rule, method = super().rule()._replace(sigmoid=False, leaders=1), self.config.get("topk_method", "greedy")
        if method not in ("greedy", "group_limited_greedy"):
            raise ValueError(f"topk_method {method!r} is not supported; known are greedy, group_limited_greedy")
        return rule if method == "group_limited_greedy" else rule._replace(groups=1, kept=1)


class Glm4MoeLite(DeepseekV3):
    """Glm4MoeLiteForCausalLM."""

    def is_dense(self, index: int) -> bool:
        """Tell whether a layer has one block instead of experts, which new configs list."""
        kinds = self.config.get("mlp_layer_types")
        if isinstance(kinds, list) and index < len(kinds):
            return bool(kinds[index] == "dense")
        return super().is_dense(index)


class Youtu(DeepseekV3):
    """YoutuForCausalLM."""

    tied_default: ClassVar[bool] = True

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - all layers are alike
        """Build a layer's one block."""
        return self.mlp(loader)

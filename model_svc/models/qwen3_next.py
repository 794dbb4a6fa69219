"""Qwen 3 Next and 3.5: three of four layers keep a state instead of keys and values, the fourth's attention is gated.

Its norms hold w - 1, a quarter of each head is rotated, and its feed-forward blocks are those of Qwen 2 with experts;
most sizes of Qwen 3.5 have none.
"""

from __future__ import annotations

from typing import ClassVar

from model_svc.layers.attention import Attention
from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.gated_delta_net import DeltaNetConfig, GatedDeltaNet
from model_svc.layers.loader import Loader
from model_svc.models.config import ModelConfig
from model_svc.models.decoder import Decoder, StateShape
from model_svc.models.qwen2_moe import experts_beside_shared


class Qwen3Next(Decoder):
    """Qwen3NextForCausalLM, Qwen3_5ForCausalLM and, with experts, Qwen3_5MoeForCausalLM."""

    norm_offset: ClassVar[float] = 1.0

    @classmethod
    def keeps_state(cls, config: ModelConfig) -> bool:  # noqa: ARG003 - all sizes do
        """Tell that some layers have a state instead of attention."""
        return True

    @classmethod
    def state_parts(cls, config: ModelConfig) -> int:
        """Return how many heads there are for ranks to share."""
        return config.whole("linear_num_value_heads", 32)

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.mixer(loader, index),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

    def mixer(self, loader: Loader, index: int) -> Attention | GatedDeltaNet:
        """Build what lets tokens of a sequence know of one another."""
        if self.has_state(index):
            return GatedDeltaNet(loader.at("linear_attn"), self.delta_net())
        bias = bool(self.config.get("attention_bias", False))
        return self.attention(loader, self.rope(), bias=bias, out_bias=bias, norm_qk="head", gated=True)

    def feed_forward(self, loader: Loader, index: int) -> Mlp:
        """Build a layer's experts and what stands beside them, or its one block."""
        renormalise = bool(self.config.get("norm_topk_prob", True))
        if not self.config.whole("num_experts") or not self.has_experts(index):
            return self.mlp(loader)
        return experts_beside_shared(self, loader.at("mlp"), renormalise=renormalise)

    def has_state(self, index: int) -> bool:
        """Tell whether a layer has a state instead of attention."""
        types, each = self.config.get("layer_types"), self.config.whole("full_attention_interval", 4) or 4
        if isinstance(types, list) and index < len(types):
            return bool(types[index] == "linear_attention")
        return (index + 1) % each != 0

    def state_shape(self, index: int) -> StateShape | None:
        """Return what a layer keeps of a sequence if it has a state instead of attention."""
        if not self.has_state(index):
            return None
        net = self.delta_net().share(self.group)
        window = (net.conv_width - 1, net.channels)
        return StateShape(window, (net.num_value_heads, net.key_dim, net.value_dim))

    def delta_net(self) -> DeltaNetConfig:
        """Return the sizes of layers with a state. Raises ValueError for heads that do not fit one another."""
        config = self.config
        net = DeltaNetConfig(
            hidden=config.hidden_size,
            num_key_heads=config.whole("linear_num_key_heads", 16),
            num_value_heads=config.whole("linear_num_value_heads", 32),
            key_dim=config.whole("linear_key_head_dim", 128),
            value_dim=config.whole("linear_value_head_dim", 128),
            conv_width=config.whole("linear_conv_kernel_dim", 4),
            norm_eps=config.norm_eps,
            in_turns=bool(config.get("linear_heads_in_turns", False)),  # `headrace pull` says so
        )
        if net.num_key_heads < 1 or net.num_value_heads % net.num_key_heads or not net.num_value_heads:
            counts = f"linear_num_value_heads {net.num_value_heads} of linear_num_key_heads {net.num_key_heads}"
            raise ValueError(f"{counts}: each key head must serve as many value heads, one or more")
        if min(net.key_dim, net.value_dim) < 1 or net.conv_width < 2:
            raise ValueError("linear_key_head_dim and linear_value_head_dim must be positive, linear_conv_kernel_dim 2")
        return net

    def drafting_layers(self) -> int:
        """Return how many layers GGUF files have behind the model's own, to guess ahead; they are left out."""
        return self.config.whole("num_nextn_predict_layers")

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 0.25

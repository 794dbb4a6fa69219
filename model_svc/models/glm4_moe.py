"""GLM-4.5, 4.6 and 4.7: experts chosen by sigmoids and a bias, one block beside them, and Llama in the first layers."""

from __future__ import annotations

from typing import ClassVar

from kernels.route import Rule
from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.experts import ExpertsBesideShared
from model_svc.layers.loader import Loader
from model_svc.layers.mlp import GatedMlp
from model_svc.models.decoder import Decoder


class Glm4Moe(Decoder):
    """Glm4MoeForCausalLM.

    `biased_choice`: a bias has a part in who is chosen. `renormalises`: shares add up to 1, where no config says it.
    """

    biased_choice: ClassVar[bool] = True
    renormalises: ClassVar[bool] = True

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        config = self.config
        bias, norm_qk = bool(config.get("attention_bias", False)), "head" if config.get("use_qk_norm", False) else ""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, norm_qk=norm_qk),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

    def feed_forward(self, loader: Loader, index: int) -> Mlp:
        """Build a layer's experts and what stands beside them, or its one block."""
        config, place = self.config, loader.at("mlp")
        if self.is_dense(index):
            return self.mlp(loader)
        X, inner = config.whole("n_routed_experts"), config.whole("moe_intermediate_size")
        experts = self.experts(
            place,
            inner,
            num_experts=X,
            renormalise=bool(config.get("norm_topk_prob", self.renormalises)),
            rule=self.rule(),
            deciding=place.exact("gate.e_score_correction_bias", (X,)) if self.biased_choice else None,
        )
        shared = inner * config.whole("n_shared_experts", 1)
        if not shared:
            return experts
        return ExpertsBesideShared(
            experts, GatedMlp(place.at("shared_experts"), config.hidden_size, shared, config.act)
        )

    def is_dense(self, index: int) -> bool:
        """Tell whether a layer has one block instead of experts."""
        return index < self.config.whole("first_k_dense_replace", 1)

    def rule(self) -> Rule:
        """Return how the router's logits become choices."""
        config = self.config
        return Rule(
            sigmoid=True,
            scale=config.number("routed_scaling_factor", 1.0),
            groups=config.whole("n_group", 1),
            kept=config.whole("topk_group", 1),
        )

    def drafting_layers(self) -> int:
        """Return how many layers stand behind the model's own in the checkpoint."""
        return self.config.whole("num_nextn_predict_layers")

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 0.5

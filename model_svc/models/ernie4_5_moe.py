"""ERNIE 4.5 with experts: a bias has a part in their choice, and a block beside them is for all tokens."""

from __future__ import annotations

from model_svc.layers.blocks import Mlp
from model_svc.layers.experts import ExpertsBesideShared
from model_svc.layers.loader import Loader
from model_svc.layers.mlp import GatedMlp
from model_svc.models.ernie4_5 import Ernie4_5


class Ernie4_5Moe(Ernie4_5):  # noqa: N801 - the model's version
    """Ernie4_5_MoeForCausalLM."""

    def feed_forward(self, loader: Loader, index: int) -> Mlp:
        """Build a layer's experts and what stands beside them, or its one block."""
        if not self.has_experts(index):
            return super().feed_forward(loader, index)
        config, place = self.config, loader.at("mlp")
        X, inner = config.whole("moe_num_experts"), config.whole("moe_intermediate_size")
        experts = self.experts(
            place,
            inner,
            num_experts=X,
            num_chosen=config.whole("moe_k"),
            deciding=place.exact("moe_statics.e_score_correction_bias", (1, X)).flatten(),
        )
        shared = inner * config.whole("moe_num_shared_experts", 2)
        if not shared:
            return experts
        bias, at = bool(config.get("use_bias", False)), place.at("shared_experts")
        return ExpertsBesideShared(experts, GatedMlp(at, config.hidden_size, shared, config.act, bias=bias))

    def has_experts(self, index: int) -> bool:
        """Tell whether a layer is a mixture of experts."""
        config = self.config
        last = config.get("moe_layer_end_index", -1)
        in_range = config.whole("moe_layer_start_index", 1) <= index and (last == -1 or index <= last)
        return in_range and (index + 1) % (config.whole("moe_layer_interval", 1) or 1) == 0

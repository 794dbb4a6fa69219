"""Qwen 1.5 and 2 with experts: as Qwen 2, but for experts and one block beside them that all tokens share."""

from __future__ import annotations

from model_svc.layers.blocks import Mlp
from model_svc.layers.experts import ExpertsBesideShared
from model_svc.layers.loader import Loader
from model_svc.layers.mlp import GatedMlp
from model_svc.models.decoder import Decoder
from model_svc.models.qwen2 import Qwen2


class Qwen2Moe(Qwen2):
    """Qwen2MoeForCausalLM."""

    def feed_forward(self, loader: Loader, index: int) -> Mlp:
        """Build a layer's experts and what stands beside them, or its one block."""
        if not self.has_experts(index):
            return self.mlp(loader)
        renormalise = bool(self.config.get("norm_topk_prob", False))
        return experts_beside_shared(self, loader.at("mlp"), renormalise=renormalise)


def experts_beside_shared(model: Decoder, place: Loader, *, renormalise: bool) -> ExpertsBesideShared:
    """Build experts and a block for all tokens, of which each takes as much as a gate says."""
    config = model.config
    experts = model.experts(place, config.whole("moe_intermediate_size"), renormalise=renormalise)
    inner = config.whole("shared_expert_intermediate_size")
    shared = GatedMlp(place.at("shared_expert"), config.hidden_size, inner, config.act)
    gate = place.columns(("shared_expert_gate",), (1,), config.hidden_size, (place.shard(1),))
    return ExpertsBesideShared(experts, shared, gate)

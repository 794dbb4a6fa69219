"""Qwen 3 with experts (30B-A3B, 235B-A22B, Coder): as Qwen 3, but for its feed-forward blocks."""

from __future__ import annotations

from model_svc.layers.blocks import Mlp
from model_svc.layers.loader import Loader
from model_svc.models.qwen3 import Qwen3


class Qwen3Moe(Qwen3):
    """Qwen3MoeForCausalLM."""

    def feed_forward(self, loader: Loader, index: int) -> Mlp:
        """Build a layer's experts, or its one block."""
        if not self.has_experts(index):
            return self.mlp(loader)
        renormalise = bool(self.config.get("norm_topk_prob", False))
        return self.experts(loader.at("mlp"), self.config.whole("moe_intermediate_size"), renormalise=renormalise)

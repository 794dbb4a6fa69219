"""Granite 3 with experts (1B-A400M, 3B-A800M): Granite with experts in every layer."""

from __future__ import annotations

from model_svc.layers.blocks import Mlp
from model_svc.layers.loader import Loader
from model_svc.models.granite import Granite


class GraniteMoe(Granite):
    """GraniteMoeForCausalLM."""

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - all layers are alike
        """Build a layer's experts."""
        return self.experts(loader.at("block_sparse_moe"), self.config.intermediate_size)

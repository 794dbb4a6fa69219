"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from model_svc.layers.blocks import Mlp
from model_svc.layers.loader import ExpertNames, Loader
from model_svc.models.mistral import Mistral

_NAMES = ExpertNames("w1", "w3", "w2")


class Mixtral(Mistral):
    """MixtralForCausalLM."""

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - all layers are alike
        """Build a layer's experts."""
        return self.experts(loader.at("block_sparse_moe"), self.config.intermediate_size, names=_NAMES)

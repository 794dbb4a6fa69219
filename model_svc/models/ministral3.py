"""Ministral 3: Mistral whose queries grow with the logarithm of their position, behind the length it was trained on."""

from __future__ import annotations

import torch

from model_svc.layers.attention import Attention
from model_svc.layers.loader import Loader
from model_svc.models.mistral import Mistral


class Ministral3(Mistral):
    """Ministral3ForCausalLM."""

    def mixer(self, loader: Loader, index: int) -> Attention:  # noqa: ARG002 - all layers are alike
        """Build a layer's attention. Raises ValueError for a length of nothing."""
        scaling = self.config.rope().scaling or {}
        beta, original = scaling.get("llama_4_scaling_beta"), scaling.get("original_max_position_embeddings")
        stretch = None
        if beta:
            if type(original) is not int or original < 1:
                raise ValueError(f"original_max_position_embeddings must be at least 1, not {original!r}")
            rounds = torch.arange(self.max_len, device=self.device) // original
            stretch = 1 + float(beta) * rounds.float().log1p()
        return self.attention(loader, self.rope(), window=self.config.sliding_window, stretch=stretch)

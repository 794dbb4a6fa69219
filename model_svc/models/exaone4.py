"""EXAONE 4: norms after each part and of each head's queries and keys; beside windows, full layers lack positions."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PostNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Exaone4(Decoder):
    """Exaone4ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        window = self.window(index)
        rotates = window is not None or self.config.sliding_window is None
        return PostNorm(
            self.attention(loader, self.rope() if rotates else None, norm_qk="head", window=window),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader),
            self.norm(loader, "post_feedforward_layernorm"),
        )

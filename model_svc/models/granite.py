"""Granite 3: Llama with four constant multipliers (embedding, attention, residual, logits)."""

from __future__ import annotations

from torch import Tensor

from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Granite(Decoder):
    """GraniteForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        config = self.config
        bias = bool(config.get("attention_bias", False))
        scale = config.number("attention_multiplier", 1.0)
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, scale=scale),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
            multiplier=config.number("residual_multiplier", 1.0),
        )

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - all layers are alike
        """Build a layer's block between its attention and the next layer."""
        return self.mlp(loader, bias=bool(self.config.get("mlp_bias", False)))

    def embedding_scale(self) -> float | None:
        """Return what embeddings are multiplied with."""
        return self.config.number("embedding_multiplier", 1.0)

    def scale_logits(self, logits: Tensor) -> Tensor:
        """Divide the logits."""
        return logits / self.config.number("logits_scaling", 1.0)

"""ERNIE 4.5: Llama in which neighbours are rotated, with one switch for all biases."""

from __future__ import annotations

from typing import ClassVar

from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Ernie4_5(Decoder):  # noqa: N801 - the model's version
    """Ernie4_5ForCausalLM."""

    tied_default: ClassVar[bool] = True

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        bias = bool(self.config.get("use_bias", False))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, interleaved=True),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - of dense models all layers are alike
        """Build a layer's block between its attention and the next layer."""
        return self.mlp(loader, bias=bool(self.config.get("use_bias", False)))

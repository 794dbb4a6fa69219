"""Command R7B: attention and feed-forward in parallel behind one layer norm; only windowed layers know positions."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from model_svc.layers.blocks import Layer, Parallel
from model_svc.layers.loader import Loader
from model_svc.layers.norm import LayerNorm, Norm
from model_svc.models.decoder import Decoder


class Cohere2(Decoder):
    """Cohere2ForCausalLM."""

    tied_default: ClassVar[bool] = True
    window_pattern: ClassVar[int] = 4

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        bias = bool(self.config.get("attention_bias", False))
        window = self.window(index)
        rope = self.rope() if window is not None else None
        return Parallel(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, rope, bias=bias, out_bias=bias, window=window, interleaved=True),
            self.mlp(loader),
        )

    def norm(self, loader: Loader, name: str) -> Norm:
        """Build a layer norm without bias."""
        return LayerNorm(loader, name, self.config.hidden_size, self.config.norm_eps)

    def scale_logits(self, logits: Tensor) -> Tensor:
        """Multiply the logits."""
        return logits * self.config.number("logit_scale", 1.0)

"""Qwen 3: Llama with an RMS norm of each head's queries and keys."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Qwen3(Decoder):
    """Qwen3ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        bias = bool(self.config.get("attention_bias", False))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, norm_qk="head", window=self.window(index)),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

"""Qwen 2 and 2.5: Llama with biases on q, k and v."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Qwen2(Decoder):
    """Qwen2ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=True, window=self.window(index)),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

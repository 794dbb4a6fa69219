"""Mistral 7B, Nemo and Small: Llama in which every layer may see a sliding window only."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Mistral(Decoder):
    """MistralForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), window=self.config.sliding_window),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

"""Mistral 7B, Nemo and Small: Llama in which all layers may see a sliding window only; Ministral: in which some do."""

from __future__ import annotations

from model_svc.layers.attention import Attention
from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Mistral(Decoder):
    """MistralForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.mixer(loader, index),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

    def mixer(self, loader: Loader, index: int) -> Attention:  # noqa: ARG002 - all layers are alike
        """Build a layer's attention."""
        return self.attention(loader, self.rope(), window=self.config.sliding_window)


class Ministral(Mistral):
    """MinistralForCausalLM."""

    def mixer(self, loader: Loader, index: int) -> Attention:
        """Build a layer's attention."""
        return self.attention(loader, self.rope(), window=self.window(index))

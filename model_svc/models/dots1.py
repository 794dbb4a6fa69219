"""dots.llm1: GLM-4.5 with whole heads rotated, all heads' queries and keys normed, and windows in some models."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.glm4_moe import Glm4Moe


class Dots1(Glm4Moe):
    """Dots1ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        bias = bool(self.config.get("attention_bias", False))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, norm_qk="head", window=self.window(index)),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
        )

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 1.0

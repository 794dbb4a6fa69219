"""Phi 3 and 4 (mini): Llama with fused qkv and gate-up tensors, part of each head rotated, a window on every layer."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Phi3(Decoder):
    """Phi3ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), fused="qkv_proj", window=self.config.sliding_window),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader, fused="gate_up_proj"),
        )

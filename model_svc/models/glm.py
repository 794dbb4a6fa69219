"""GLM-4 of 2024 (9B chat): Llama with fused gate and up, biases on q, k and v, half of each head rotated by pairs."""

from __future__ import annotations

from model_svc.layers.attention import Attention
from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Glm(Decoder):
    """GlmForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.mixer(loader),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader, fused="gate_up_proj"),
        )

    def mixer(self, loader: Loader) -> Attention:
        """Build a layer's attention; GGUF files have q, k and v in one tensor."""
        fused = None if loader.has("self_attn.q_proj.weight") else "qkv_proj"
        bias = bool(self.config.get("attention_bias", True))
        return self.attention(loader, self.rope(), bias=bias, interleaved=True, fused=fused)

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 0.5

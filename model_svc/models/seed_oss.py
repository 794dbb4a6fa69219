"""Seed-OSS: Llama with biases on q, k and v alone."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class SeedOss(Decoder):
    """SeedOssForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        bias = bool(self.config.get("attention_bias", True))
        out_bias = bool(self.config.get("attention_out_bias", False))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=out_bias),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader, bias=bool(self.config.get("mlp_bias", False))),
        )

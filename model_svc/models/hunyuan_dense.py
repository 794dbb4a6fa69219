"""HunYuan (dense, 0.5B to 7B): Llama with norms of each head's queries and keys once they are rotated."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder

_NORMS = ("query_layernorm", "key_layernorm")


class HunYuanDense(Decoder):
    """HunYuanDenseV1ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        bias = bool(self.config.get("attention_bias", False))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, norm_qk="rotated", norm_names=_NORMS),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader),
        )

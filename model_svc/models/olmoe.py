"""OLMoE: Llama with norms over the whole projections of q and k, and experts in every layer."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Olmoe(Decoder):
    """OlmoeForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer. Raises ValueError for clipped projections, which no released model has."""
        config = self.config
        if config.get("clip_qkv") is not None:
            raise ValueError(f"clip_qkv {config.get('clip_qkv')!r} is not supported")
        bias = bool(config.get("attention_bias", False))
        renormalise = bool(config.get("norm_topk_prob", False))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, norm_qk="whole"),
            self.norm(loader, "post_attention_layernorm"),
            self.experts(loader.at("mlp"), config.intermediate_size, renormalise=renormalise),
        )

"""OLMo 2: norms after each part instead of before, and over the whole projections of q and k."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PostNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Olmo2(Decoder):
    """Olmo2ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        bias = bool(self.config.get("attention_bias", False))
        rope, window = self.rope(self.layer_type(index)), self.window(index)
        return PostNorm(
            self.attention(loader, rope, bias=bias, out_bias=bias, norm_qk="whole", window=window),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader),
            self.norm(loader, "post_feedforward_layernorm"),
        )

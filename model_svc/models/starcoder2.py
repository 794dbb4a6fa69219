"""StarCoder 2: layer norms, biases everywhere, no gates, and a window on every layer."""

from __future__ import annotations

from typing import ClassVar

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.layers.norm import LayerNorm, Norm
from model_svc.layers.plain_mlp import PlainMlp, activation_of
from model_svc.models.decoder import Decoder


class Starcoder2(Decoder):
    """Starcoder2ForCausalLM."""

    tied_default: ClassVar[bool] = True

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        config = self.config
        bias, act = bool(config.get("use_bias", True)), activation_of(config.act)
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, window=config.sliding_window),
            self.norm(loader, "post_attention_layernorm"),
            PlainMlp(
                loader.at("mlp"), config.hidden_size, config.intermediate_size, act, bias=bias, names=("c_fc", "c_proj")
            ),
        )

    def norm(self, loader: Loader, name: str) -> Norm:
        """Build a layer norm."""
        return LayerNorm(loader, name, self.config.hidden_size, self.config.norm_eps, bias=True)

"""Apertus: norms of each head's queries and keys, no gates, and an activation of which each layer learned the form."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.layers.plain_mlp import PlainMlp, Xielu
from model_svc.models.decoder import Decoder


class Apertus(Decoder):
    """ApertusForCausalLM. Raises ValueError for another activation."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        config, place = self.config, loader.at("mlp")
        if config.get("hidden_act", "xielu") != "xielu":
            raise ValueError(f"activation {config.act!r} is not supported; Apertus has xielu")
        bias = bool(config.get("attention_bias", False))
        return PreNorm(
            self.norm(loader, "attention_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias, norm_qk="head"),
            self.norm(loader, "feedforward_layernorm"),
            PlainMlp(place, config.hidden_size, config.intermediate_size, Xielu(place.at("act_fn"))),
        )

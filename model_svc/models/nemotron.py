"""Nemotron 4, Minitron: layer norms of weights stored minus one, squares for gates, half of each head rotated."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.layers.norm import LayerNorm, Norm
from model_svc.layers.plain_mlp import PlainMlp, activation_of
from model_svc.models.decoder import Decoder


class Arcee(Decoder):
    """ArceeForCausalLM (AFM): Llama with squares for gates."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        config = self.config
        bias, mlp_bias = (bool(config.get(name, False)) for name in ("attention_bias", "mlp_bias"))
        act = activation_of(str(config.get("hidden_act", "relu2")))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=bias, out_bias=bias),
            self.norm(loader, "post_attention_layernorm"),
            PlainMlp(loader.at("mlp"), config.hidden_size, config.intermediate_size, act, bias=mlp_bias),
        )


class Nemotron(Arcee):
    """NemotronForCausalLM."""

    def norm(self, loader: Loader, name: str) -> Norm:
        """Build a layer norm."""
        return LayerNorm(loader, name, self.config.hidden_size, self.config.norm_eps, bias=True, offset=1.0)

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 0.5

"""gpt-oss: experts with biases and a clamped gate, attention with sinks, which sees a window in every other layer."""

from __future__ import annotations

from typing import ClassVar

from kernels.activation import CLAMPED, LIMIT, STEEPNESS
from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import ExpertNames, Loader
from model_svc.models.decoder import Decoder

_NAMES = ExpertNames(router="router")


class GptOss(Decoder):
    """GptOssForCausalLM."""

    window_pattern: ClassVar[int] = 2

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer. Raises ValueError for a gate of another form, which no released model has."""
        config = self.config
        for name, usual in (("swiglu_limit", LIMIT), ("swiglu_alpha", STEEPNESS)):
            if config.number(name, usual) != usual:
                raise ValueError(f"{name} {config.number(name)} is not supported; it must be {usual}")
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), bias=True, out_bias=True, window=self.window(index), sinks=True),
            self.norm(loader, "post_attention_layernorm"),
            self.experts(loader.at("mlp"), config.intermediate_size, names=_NAMES, act=CLAMPED, bias=True),
        )

"""A gated short convolution instead of attention (LFM2): project to two gates and inputs, convolve, project back.

Its whole state is the window of the convolution: the last few gated inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.causal_conv import Gates, causal_conv
from kernels.quantize_rows import QuantizedRows
from model_svc.layers.loader import Loader
from model_svc.layers.mixer import Mixer
from model_svc.layers.step import LayerKv, StepBatch


@dataclass(frozen=True)
class ShortConvConfig:
    """The sizes of a layer, whose convolution is over W tokens; `bias`: it and both products have one."""

    hidden: int
    width: int
    bias: bool = False


class ShortConv(Mixer):
    """One layer's convolution, `conv` of the checkpoint."""

    def __init__(self, loader: Loader, config: ShortConvConfig) -> None:
        E, W, bias, own = config.hidden, config.width, config.bias, loader.shard(config.hidden)
        self._channels = E // own.size
        self._inputs = loader.columns(("in_proj",), (E, E, E), E, (own,) * 3, bias=bias)
        self._filters = loader.part("conv.weight", (E, 1, W), own).view(-1, W)
        self._bias = loader.part("conv.bias", (E,), own) if bias else None
        self._out = loader.rows("out_proj", E, E, bias=bias)

    def _read(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return the gated convolution [T, E]."""
        assert isinstance(x, Tensor)
        before, behind, inputs = torch.split(self._inputs(x), self._channels, dim=-1)
        return causal_conv(
            inputs, self._filters, kv[0], step.slots, step.query_start, step.context_lens,
            max_query_len=step.max_query_len, bias=self._bias, gates=Gates(before, behind),
        )  # fmt: skip

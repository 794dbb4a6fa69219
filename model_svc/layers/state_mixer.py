"""What takes the place of attention in a layer with a state: it reads that, and a last product makes the output."""

from __future__ import annotations

from torch import Tensor

from kernels.quantize_rows import QuantizedRows
from model_svc.layers.linear import Linear
from model_svc.layers.step import LayerKv, StepBatch


class StateMixer:
    """A layer's part that keeps a state of each sequence. Subclasses set `_out`, the last product, and say `_read`."""

    _out: Linear

    def __call__(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return the layer's output [T, E] for `x` [T, E]; `kv` are its windows and states."""
        assert isinstance(x, Tensor)
        return self._out(self._read(x, step, kv))

    @property
    def adds(self) -> bool:
        """Whether `add` computes this layer."""
        return self._out.is_plain

    def add(self, x: Tensor, total: Tensor, step: StepBatch, kv: LayerKv, multiplier: float) -> None:
        """Add the output for `x`, times `multiplier`, to `total` [T, E] in place: the last product does."""
        self._out.add(self._read(x, step, kv), total, multiplier)

    def _read(self, x: Tensor, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the last product takes, [T, inner], and bring windows and states up to date."""
        raise NotImplementedError

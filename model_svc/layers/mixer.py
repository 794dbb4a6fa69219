"""What lets tokens of a sequence know of one another in a layer: attention, or a state that is read and kept."""

from __future__ import annotations

from torch import Tensor

from kernels.quantize_rows import QuantizedRows
from model_svc.layers.linear import Linear
from model_svc.layers.step import LayerKv, StepBatch


class Mixer:
    """A part of a layer that reads what is kept of each sequence.

    Subclasses set `_out`, the last product, and say `_read`.
    """

    _out: Linear

    @property
    def first(self) -> Linear | None:
        """The product that its input goes to; None: it takes plain rows alone."""
        return None

    def __call__(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return the output [T, E] for `x` [T, E]; keys and values of the step, or its states, are then in `kv`."""
        return self._out(self._read(x, step, kv))

    @property
    def adds(self) -> bool:
        """Whether `add` computes this layer."""
        return self._out.is_plain

    def add(self, x: Tensor, total: Tensor, step: StepBatch, kv: LayerKv, multiplier: float) -> None:
        """Add the output for `x`, times `multiplier`, to `total` [T, E] in place: the last product does."""
        self._out.add(self._read(x, step, kv), total, multiplier)

    def _read(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the last product takes, [T, inner], and bring `kv` up to date."""
        raise NotImplementedError

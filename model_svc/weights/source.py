"""Where weights come from. Layers pull tensors by checkpoint name and say the shape they need.

After loading, `unused()` must be empty: a tensor that nobody asked for means that the model was built wrong.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.stored.tensor import QuantizedTensor

Stored = Tensor | QuantizedTensor


class Shard(NamedTuple):
    """The part number `rank` of `size` parts of a tensor, cut along `dim`.

    They are equal; with `unit`, where that divides the whole, they are cut between runs of so many, as equal as may be.
    """

    dim: int = 0
    rank: int = 0
    size: int = 1
    unit: int = 0

    def span(self, total: int) -> tuple[int, int]:
        """Return where the part of `total` begins, and its width. Raises ValueError if equal parts cannot be cut."""
        unit = self.unit if self.unit and total % self.unit == 0 and total >= self.size * self.unit else 0
        if not unit and total % self.size:
            raise ValueError(f"{total} cannot be cut into {self.size} equal parts")
        unit = unit or total // self.size
        begin, end = (total // unit * rank // self.size * unit for rank in (self.rank, self.rank + 1))
        return begin, end - begin


WHOLE = Shard()


def narrow(stored: Stored, dim: int, start: int, width: int) -> Stored:
    """Return rows (`dim` 0) or columns of a tensor as it is stored. Raises ValueError if that would cut a block."""
    if not isinstance(stored, QuantizedTensor):
        return stored.narrow(dim, start, width)
    return stored.rows(slice(start, start + width)) if dim == 0 else stored.columns(start, start + width)


class WeightSource(Protocol):
    """A checkpoint (or something that behaves like one)."""

    def names(self) -> frozenset[str]:
        """Return the checkpoint names of all tensors."""
        ...

    def has(self, name: str) -> bool:
        """Tell whether a tensor exists."""
        ...

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a whole tensor as numbers (blocks are dequantized to float32).

        Raises CheckpointError if it is missing or of another shape.
        """
        ...

    def get_any(self, name: str) -> Tensor:
        """Return a whole tensor as numbers, whatever its shape. Raises CheckpointError if it is missing."""
        ...

    def get_shard(self, name: str, shape: tuple[int, ...], shard: Shard = WHOLE) -> Stored:
        """Return a part of a tensor as it is stored; `shape` is that of the whole. Raises CheckpointError."""
        ...

    def ignore(self, name: str) -> None:
        """Count a tensor as used without reading it."""
        ...

    def unused(self) -> frozenset[str]:
        """Return the names that nobody asked for yet."""
        ...

    def release(self) -> None:
        """Let go of memory that only reading took; tensors given out stay good."""
        ...


class TrackedSource:
    """The bookkeeping of a source; a subclass says what it holds (`place`, `shapes`) and reads one tensor (`read`)."""

    place: str
    shapes: dict[str, tuple[int, ...]]

    def __init__(self) -> None:
        self._used: set[str] = set()

    def read(self, name: str) -> Stored:
        """Return a tensor as stored, without copying it where possible."""
        raise NotImplementedError

    def names(self) -> frozenset[str]:
        """Return the checkpoint names of all tensors."""
        return frozenset(self.shapes)

    def has(self, name: str) -> bool:
        """Tell whether a tensor exists."""
        return name in self.shapes

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a whole tensor as numbers."""
        stored = self._checked(name, shape)
        return stored.dequantize() if isinstance(stored, QuantizedTensor) else stored

    def get_any(self, name: str) -> Tensor:
        """Return a whole tensor as numbers, whatever its shape."""
        return self.get(name, self.shapes.get(name, ()))

    def get_shard(self, name: str, shape: tuple[int, ...], shard: Shard = WHOLE) -> Stored:
        """Return a part of a tensor as it is stored."""
        stored = self._checked(name, shape)
        if shard.size == 1:
            return stored
        try:
            span = shard.span(shape[shard.dim])
        except ValueError as error:
            raise CheckpointError(self.place, f"tensor {name!r}: {error}") from error
        try:
            return narrow(stored, shard.dim, *span)
        except ValueError as error:
            fault = f"tensor {name!r} cannot be cut for {shard.size} ranks ({error}); lower tensor_parallel"
            raise CheckpointError(self.place, fault) from error

    def ignore(self, name: str) -> None:
        """Count a tensor as used without reading it."""
        self._used.add(name)

    def unused(self) -> frozenset[str]:
        """Return the names that nobody asked for yet."""
        return self.names() - self._used

    def release(self) -> None:
        """Let go of memory that only reading took: a source that is not a mapped file has none."""

    def _checked(self, name: str, shape: tuple[int, ...]) -> Stored:
        found = self.shapes.get(name)
        if found is None:
            raise CheckpointError(self.place, f"tensor {name!r} is missing")
        if found != tuple(shape):
            raise CheckpointError(
                self.place, f"tensor {name!r} has shape {list(found)}; the config asks for {list(shape)}"
            )
        self._used.add(name)
        return self.read(name)

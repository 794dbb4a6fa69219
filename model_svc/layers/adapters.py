"""The LoRA adapters of a model: what each adds behind the products of its layers, for the rows that ask for it.

An adapter's number is its place among the names, from 1 on; 0 is the base model alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.lora import LoraRows, LoraWeights, add_lora
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.source import Shard

_RANKS = 16  # ranks are rounded up to so many: a tensor core's tile


@dataclass(frozen=True)
class AdapterRoom:
    """Room for adapters that come while the model works: how many, and of which rank at most."""

    count: int = 0
    max_rank: int = 16


class Part:
    """What an adapter that came has for one product, None: nothing."""

    def __init__(self, weights: LoraWeights, down: Tensor | None, up: Tensor | None) -> None:
        self.num_bytes = weights.down[0].nbytes + weights.up[0].nbytes
        self._weights, self._down, self._up = weights, down, up

    def put(self, number: int) -> None:
        """Give it to the adapter of this number, in place."""
        self._weights.put(number - 1, self._down, self._up)


class Adapters:
    """All adapters, and which rows of the step under way are whose."""

    def __init__(
        self,
        checkpoints: Sequence[AdapterCheckpoint],
        dtype: torch.dtype,
        device: torch.device,
        room: AdapterRoom | None = None,
    ) -> None:
        self.names = tuple(each.name for each in checkpoints)
        self.room = room or AdapterRoom()
        self.num_bytes = 0
        self.rows: LoraRows | None = None
        self._checkpoints = checkpoints
        self._dtype = dtype
        self._device = device
        self._products: list[tuple[_Product, LoraWeights]] = []
        self._left: list[str] = []

    @contextmanager
    def serving(self, rows: LoraRows | None) -> Iterator[None]:
        """Let products inside add what the adapters of `rows` say; None: nobody's."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    def part(
        self,
        layers: Sequence[str],
        outs: Sequence[int],
        size: int,
        cut: Sequence[Shard] = (),
        inputs: Shard | None = None,
    ) -> LowRank | None:
        """Return what is added behind a product of stacked `layers`, None if no adapter changes one of them or may.

        A rank has a part of the outputs (`cut`: of each) or of the `inputs`. One layer for several `outs`: the
        checkpoint has them as one. Raises CheckpointError.
        """
        rank = max((each.rank(layer) for each in self._checkpoints for layer in layers), default=0)
        rank = max(rank, self.room.max_rank) if self.room.count else rank
        if not rank:
            return None
        product = _Product(layers, outs, size, _Cut(outs, cut, size, inputs), -(-rank // _RANKS) * _RANKS)
        L = len(self._checkpoints) + self.room.count
        down, up = (torch.zeros(L, *shape, dtype=self._dtype) for shape in product.shapes)
        for n, checkpoint in enumerate(self._checkpoints):
            if product.is_changed_by(checkpoint):
                product.read(checkpoint, down[n], up[n])
        self.num_bytes += down.nbytes + up.nbytes
        weights = LoraWeights(down.to(self._device), up.to(self._device), product.widths)
        self._products.append((product, weights))
        return LowRank(self, weights)

    def read(self, checkpoint: AdapterCheckpoint) -> list[Part]:
        """Read an adapter that comes while the model works, in any thread. Raises CheckpointError."""
        parts = []
        checkpoint.check_ranks(self.room.max_rank)
        for product, weights in self._products:
            down = up = None
            if product.is_changed_by(checkpoint):
                down, up = (torch.zeros(shape, dtype=self._dtype) for shape in product.shapes)
                product.read(checkpoint, down, up)
            parts.append(Part(weights, down, up))
        for prefix in self._left:
            checkpoint.leave(prefix)
        checkpoint.check_all_taken()
        return parts

    @property
    def bytes_each(self) -> int:
        """What one adapter takes on the device."""
        return sum(weights.down[0].nbytes + weights.up[0].nbytes for _, weights in self._products)

    def leave(self, prefix: str) -> None:
        """Count what is below a place as used: another stage has these layers."""
        self._left.append(prefix)
        for checkpoint in self._checkpoints:
            checkpoint.leave(prefix)

    def check_all_taken(self) -> None:
        """Raise CheckpointError if an adapter changes what no product of ours is."""
        for checkpoint in self._checkpoints:
            checkpoint.check_all_taken()


@dataclass(frozen=True)
class _Product:
    """A product of stacked `layers`, and how much of an adapter's rank R it has room for."""

    layers: Sequence[str]
    outs: Sequence[int]
    size: int
    own: _Cut
    rank: int

    @property
    def widths(self) -> tuple[int, ...]:
        """How many outputs of each layer are this rank's."""
        return tuple(self.own.widths) if self._is_apart else (sum(self.own.widths),)

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of an adapter's A and B."""
        return (len(self.layers) * self.rank, self.own.size), (sum(self.widths), self.rank)

    def is_changed_by(self, checkpoint: AdapterCheckpoint) -> bool:
        """Tell whether an adapter has a part for one of the layers."""
        return any(checkpoint.has(layer) for layer in self.layers)

    def read(self, checkpoint: AdapterCheckpoint, down: Tensor, up: Tensor) -> None:
        """Fill A and B, which are zeros, with what an adapter has. Raises CheckpointError."""
        at, P = 0, len(self.layers)
        whole = self.outs if self._is_apart else (sum(self.outs),)
        for p, (layer, out, width) in enumerate(zip(self.layers, whole, self.widths, strict=True)):
            if checkpoint.has(layer):
                found = checkpoint.part(layer, out, self.size)
                r = len(found.down)
                down[p * self.rank : p * self.rank + r] = self.own.inputs(found.down)
                up[at : at + width, :r] = self.own.outputs(found.up, p, P).float() * found.scale
            at += width

    @property
    def _is_apart(self) -> bool:
        return len(self.layers) == len(self.outs)


class LowRank:
    """What adapters add behind one product."""

    def __init__(self, adapters: Adapters, weights: LoraWeights) -> None:
        self._adapters = adapters
        self._weights = weights

    @property
    def is_asked(self) -> bool:
        """Whether a row of the step under way has an adapter."""
        return self._adapters.rows is not None

    def add(self, x: Tensor, out: Tensor, multiplier: float = 1.0) -> None:
        """Add what `x` [T, in] comes to, times `multiplier`, to `out` [T, out] in place."""
        assert self._adapters.rows is not None
        add_lora(x, self._weights, self._adapters.rows, out, multiplier)


class _Cut:
    """A rank's part of a product's outputs and inputs."""

    def __init__(self, outs: Sequence[int], cut: Sequence[Shard], size: int, inputs: Shard | None) -> None:
        self._outs = outs
        self._cut = cut or [Shard()] * len(outs)
        self._in = inputs or Shard(1)
        self.size = size // self._in.size
        self.widths = [out // shard.size for out, shard in zip(outs, self._cut, strict=True)]

    def inputs(self, down: Tensor) -> Tensor:
        """Return the columns of A [r, in]."""
        return down.narrow(1, self._in.rank * self.size, self.size)

    def outputs(self, up: Tensor, part: int, num_parts: int) -> Tensor:
        """Return the rows of B [out, r]; of the one layer that stands for all outputs, a piece of each."""
        pieces = range(len(self._outs)) if num_parts < len(self._outs) else [part]
        found, begin = [], 0
        for n in pieces:
            found.append(up.narrow(0, begin + self._cut[n].rank * self.widths[n], self.widths[n]))
            begin += self._outs[n]
        return torch.cat(found)

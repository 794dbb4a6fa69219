"""The LoRA adapters of a model: what each adds behind the products of its layers, for the rows that ask for it.

An adapter's number is its place among the names, from 1 on; 0 is the base model alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kernels.lora import LoraRows, LoraWeights, add_lora
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.source import Shard

_RANKS = 16  # ranks are rounded up to so many: a tensor core's tile


class Adapters:
    """All adapters, and which rows of the step under way are whose."""

    def __init__(self, checkpoints: Sequence[AdapterCheckpoint], dtype: torch.dtype, device: torch.device) -> None:
        self.names = tuple(each.name for each in checkpoints)
        self.num_bytes = 0
        self.rows: LoraRows | None = None
        self._checkpoints = checkpoints
        self._dtype = dtype
        self._device = device

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
        """Return what is added behind a product of stacked `layers`, None if no adapter changes one of them.

        A rank has a part of the outputs (`cut`: of each) or of the `inputs`. One layer for several `outs`: the
        checkpoint has them as one. Raises CheckpointError.
        """
        rank = max((each.rank(layer) for each in self._checkpoints for layer in layers), default=0)
        if not rank:
            return None
        whole = outs if len(layers) == len(outs) else (sum(outs),)
        R, P, L = -(-rank // _RANKS) * _RANKS, len(layers), len(self._checkpoints)
        own = _Cut(outs, cut, size, inputs)
        widths = own.widths if len(outs) == P else (sum(own.widths),)
        down = torch.zeros(L, P * R, own.size, dtype=self._dtype)
        up = torch.zeros(L, sum(widths), R, dtype=self._dtype)
        for n, checkpoint in enumerate(self._checkpoints):
            at = 0
            for p, (layer, out) in enumerate(zip(layers, whole, strict=True)):
                if checkpoint.has(layer):
                    found = checkpoint.part(layer, out, size)
                    r = len(found.down)
                    down[n, p * R : p * R + r] = own.inputs(found.down)
                    up[n, at : at + widths[p], :r] = own.outputs(found.up, p, P).float() * found.scale
                at += widths[p]
        self.num_bytes += down.nbytes + up.nbytes
        return LowRank(self, LoraWeights(down.to(self._device), up.to(self._device), tuple(widths)))

    def leave(self, prefix: str) -> None:
        """Count what is below a place as used: another stage has these layers."""
        for checkpoint in self._checkpoints:
            checkpoint.leave(prefix)

    def check_all_taken(self) -> None:
        """Raise CheckpointError if an adapter changes what no product of ours is."""
        for checkpoint in self._checkpoints:
            checkpoint.check_all_taken()


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

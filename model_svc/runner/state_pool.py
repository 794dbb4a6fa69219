"""What layers with a state keep of sequences: a row for each slot, others for snapshots, one memory for all layers.

A row is everything that is kept of one sequence, so that a snapshot is one copy. Nothing is zeroed: kernels begin with
zeros where a sequence begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor

from kernels.native import huge_pages
from model_svc.engine.plan import SequenceStep
from model_svc.layers.step import LayerKv
from model_svc.models.decoder import StateShape

_ALIGN = 32  # numbers, 128 bytes: where a tensor of a row may begin


class StatePool:
    """`num_slots` rows of slots, `num_snapshots` of snapshots, and a last one of nobody's."""

    def __init__(
        self, shapes: Sequence[StateShape | None], num_slots: int, num_snapshots: int, device: torch.device
    ) -> None:
        self._num_slots = num_slots
        self._shapes = shapes
        size = (num_slots + num_snapshots + 1, row_bytes(shapes) // 4)
        if device.type == "cpu":  # as pages that the system hands out at their first write
            self._rows = huge_pages.zeros(prod(size) * 4).view(torch.float32).view(size)
        else:
            self._rows = torch.zeros(size, dtype=torch.float32, device=device)

    def among(self, paged: list[LayerKv]) -> list[LayerKv]:
        """Return the states of layers that have some and, between them, the keys and values of the others."""
        if not self._shapes:
            return paged
        rest, layers, at = iter(paged), [], 0
        for shape in self._shapes:
            if shape is None:
                layers.append(next(rest))
                continue
            parts: list[Tensor] = []
            for size in (shape.window, shape.state):
                parts.append(self._rows[:, at : at + prod(size)].view(len(self._rows), *size))
                at += _room(size)
            layers.append((parts[0], parts[1]))
        return layers

    def restore(self, sequences: Iterable[SequenceStep]) -> None:
        """Bring the snapshots that sequences begin with to their slots."""
        for item in sequences:
            if item.restore >= 0:
                self._rows[item.slot].copy_(self._rows[self._num_slots + item.restore])

    def save(self, sequences: Iterable[SequenceStep]) -> None:
        """Keep what slots hold now where a snapshot of it is wanted."""
        for item in sequences:
            if item.save >= 0:
                self._rows[self._num_slots + item.save].copy_(self._rows[item.slot])


def row_bytes(shapes: Sequence[StateShape | None]) -> int:
    """Return what all layers together keep of one sequence."""
    return 4 * sum(_room(size) for shape in shapes if shape is not None for size in (shape.window, shape.state))


def _room(size: tuple[int, ...]) -> int:
    return -(-prod(size) // _ALIGN) * _ALIGN

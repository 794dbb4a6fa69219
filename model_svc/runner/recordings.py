"""Recorded steps by shape: a few are made at the start, the others while the engine has nothing to do.

A step that is not recorded yet runs in a larger recording or launch by launch. For a first token that is the faster
way: recording launches everything twice before it can run. Under load that never ends it costs a little with each step,
so a shape that was missed often enough to have paid for its recording is recorded between two steps.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from model_svc.runner.packed_step import StepShape

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recording:
    """A step of one shape: `forward` leaves logits, `draw` makes tokens of them; `hidden` [S, E] is what the head saw.

    Two parts, because a step in which somebody asks for penalties, masks or log-probabilities draws in its own way. Of
    a shape that `draws` they are one, and `draw` does nothing.
    """

    forward: Callable[[], None]
    draw: Callable[[], None]
    hidden: Tensor


R = TypeVar("R")
Forward = Callable[[StepShape], Tensor]
Draw = Callable[[StepShape, Tensor], None]


class Recorder:
    """Records steps on the current stream; they share one pool of memory, as only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def record(
        self, shape: StepShape, stage: Callable[[StepShape], None], forward: Forward, draw: Draw | None
    ) -> Recording:
        """Record a shape. `stage` sends a step of padding alone: what runs here must write nowhere.

        Without `draw` such steps draw in other ways, or in `forward`.
        """
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stage(shape)
        hidden = forward(shape)  # compiles kernels, loads modules, makes cuBLAS choose
        if draw is not None:
            draw(shape, hidden)
        first, hidden = _capture(self._pool, partial(forward, shape))
        second = _capture(self._pool, partial(draw, shape, hidden))[0] if draw is not None else None
        return Recording(first.replay, second.replay if second is not None else _nothing, hidden)


class Recordings:
    """Those of one kind of steps. `patience` says how often a shape is missed before it is recorded between two."""

    def __init__(self, record: Callable[[StepShape], Recording], *, patience: Callable[[StepShape], int]) -> None:
        self._record = record
        self._patience = patience
        self._made: dict[StepShape, Recording] = {}
        self._missed: dict[StepShape, int] = {}  # what is still to be made, and how often it was asked for

    def make(self, shapes: Iterable[StepShape]) -> None:
        """Record shapes now."""
        for shape in shapes:
            self._made[shape] = self._record(shape)

    def plan(self, shapes: Iterable[StepShape]) -> None:
        """Note shapes for later, the more urgent ones first."""
        self._missed |= dict.fromkeys(shapes, 0)

    def get(self, shape: StepShape) -> Recording | None:
        """Return the recording of a shape; None if the step is to run in another way."""
        if shape in self._missed:
            self._missed[shape] += 1
            if self._missed[shape] > self._patience(shape):
                self._try(shape)
        return self._made.get(shape)

    def made(self, shape: StepShape) -> Recording | None:
        """Return the recording of a shape if it is there, without asking for it."""
        return self._made.get(shape)

    def make_next(self) -> bool:
        """Record what was missed most, if anything is left to be recorded; tells whether more is."""
        if self._missed:
            self._try(max(self._missed, key=self._missed.__getitem__))
        return bool(self._missed)

    @property
    def all_made(self) -> bool:
        """Whether nothing is left to be recorded."""
        return not self._missed

    def clear(self) -> None:
        """Free all."""
        self._made.clear()
        self._missed.clear()

    def _try(self, shape: StepShape) -> None:
        del self._missed[shape]
        try:
            self._made[shape] = self._record(shape)
        except RuntimeError as error:  # no memory, most likely; the other ways need none
            log.warning(
                "%d kinds of steps stay unrecorded and run slower: %s; lower kv_memory_bytes or num_blocks make room",
                len(self._missed) + 1,
                str(error).splitlines()[0],
            )
            self._missed.clear()


def _nothing() -> None:
    pass


def _capture(pool: Any, function: Callable[[], R]) -> tuple[torch.cuda.CUDAGraph, R]:
    """Capture without `torch.cuda.graph`, which collects garbage and empties caches each time: 0.1 s a graph.

    But garbage must not be collected meanwhile: a graph among it would be freed, which spoils the capture.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    collects = gc.isenabled()
    gc.disable()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = function()
        except BaseException:
            with suppress(RuntimeError):  # that of an end that cannot be must not hide why
                graph.capture_end()
            raise
        graph.capture_end()
    finally:
        if collects:
            gc.enable()
    return graph, result

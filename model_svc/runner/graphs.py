"""Recorded steps: CUDA graphs by padded size, so that the host launches a decode step with two calls instead of 500.

A step of another size runs in the next larger graph; the rest of its rows are padding, which writes nowhere.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model_svc.runner.packed_step import StepShape

# With more tokens the device is busy for longer than eager launches take.
_MIXED_TOKENS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512)
_WIDTHS = (8, 64)
_CHECKED_TOKENS = (8, 16, 32, 64)
_CHECKED_QUERIES = 8  # tokens of a sequence: one tile of the decode kernel at four query heads a KV head


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Return the padded numbers of sequences: multiples of 16 are one variant of each kernel."""
    sizes = [1, 2, 4, 8, *range(16, 256, 16), *range(256, max_num_seqs + 1, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def widths(max_num_seqs: int) -> list[int]:
    """Return the padded numbers of sequences of mixed steps: few, as each is another variant of the kernels."""
    return [width for width in _WIDTHS if width < max_num_seqs] + [max_num_seqs]


def recorded_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes to record, the largest first, so that the others fit in the memory it leaves."""
    limit = max(max_num_batched_tokens, max_num_seqs)
    decodes = [StepShape(size, size, True) for size in decode_sizes(max_num_seqs)]
    sizes = widths(max_num_seqs)
    # A width that has room for a sequence in each token is the last one that is of use.
    mixed = [
        StepShape(T, S, False)
        for T in _MIXED_TOKENS
        for smaller, S in zip([0, *sizes], sizes, strict=False)
        if limit >= T > smaller
    ]
    return sorted(decodes + mixed, key=lambda shape: (shape.num_tokens, shape.num_sequences), reverse=True)


def checking_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes of steps that check guesses, for few sequences only: many have no use for them."""
    width = widths(max_num_seqs)[0]
    return [
        StepShape(T, width, False, _CHECKED_QUERIES) for T in reversed(_CHECKED_TOKENS) if max_num_batched_tokens >= T
    ]


class Shapes:
    """Finds the recorded shape that a step fits in."""

    def __init__(self, shapes: Iterable[StepShape], max_num_seqs: int, max_num_batched_tokens: int) -> None:
        shapes = list(shapes)
        self._widths = widths(max_num_seqs)
        self._limit = max_num_batched_tokens
        self._decode = sorted(shape for shape in shapes if shape.decode)
        self._mixed = sorted(shape for shape in shapes if not shape.decode)
        self._sizes = [shape.num_sequences for shape in self._decode]

    def fit_checks(self, step: StepShape, max_query_len: int) -> StepShape:
        """Return the smallest shape that holds a step with guesses; only steps of answers are recorded."""
        width = self._widths[0]
        if max_query_len <= _CHECKED_QUERIES and step.num_sequences <= width:
            T = next((T for T in _CHECKED_TOKENS if step.num_tokens <= T <= self._limit), None)
            if T is not None:
                return StepShape(T, width, False, _CHECKED_QUERIES)
        shape = self.fit(step)
        return shape._replace(checks=shape.num_tokens)

    def fit(self, step: StepShape) -> StepShape:
        """Return the smallest shape that holds a step; one that is not recorded is only rounded up."""
        if step.decode:
            at = bisect_left(self._sizes, step.num_sequences)
            if at < len(self._decode):
                return self._decode[at]
        for shape in self._mixed:
            if shape.num_tokens >= step.num_tokens and shape.num_sequences >= step.num_sequences:
                return shape
        width = next(width for width in self._widths if width >= step.num_sequences)
        return StepShape(min(-(-step.num_tokens // 16) * 16, self._limit), width, False)


@dataclass(frozen=True)
class Recording:
    """A step of one shape: `forward` leaves logits, `draw` makes tokens of them; `hidden` [S, E] is what the head saw.

    Two parts, because a step in which somebody asks for penalties, masks or log-probabilities draws in its own way.
    """

    forward: Callable[[], None]
    draw: Callable[[], None]
    hidden: Tensor


Forward = Callable[[StepShape], Tensor]
Draw = Callable[[StepShape, Tensor], None]


def record(
    shapes: Iterable[StepShape], stage: Callable[[StepShape], None], forward: Forward, draw: Draw | None
) -> dict[StepShape, Recording]:
    """Record all shapes on the current stream; they share one pool of memory, as only one of them runs at a time.

    `stage` sends a step of padding alone: what runs here must write nowhere. Without `draw` steps draw in other ways.
    """
    pool = torch.cuda.graph_pool_handle()
    recordings = {}
    for shape in shapes:
        stage(shape)
        hidden = forward(shape)  # compiles kernels, loads modules, makes cuBLAS choose
        if draw is not None:
            draw(shape, hidden)
        first, hidden = _capture(pool, partial(forward, shape))
        second = _capture(pool, partial(draw, shape, hidden))[0] if draw is not None else None
        recordings[shape] = Recording(first.replay, second.replay if second is not None else _nothing, hidden)
    torch.cuda.synchronize()
    return recordings


def _nothing() -> None:
    pass


class LateRecordings:
    """Records a shape when it comes for the second time: most deployments never ask for these steps."""

    def __init__(self, shapes: Iterable[StepShape], forward: Forward, draw: Draw) -> None:
        self._shapes = set(shapes)
        self._forward, self._draw = forward, draw
        self._met: set[StepShape] = set()
        self._recordings: dict[StepShape, Recording] = {}
        self._pool: Any = None

    def get(self, shape: StepShape) -> Recording | None:
        """Return a recording; None if the step is to run eagerly, which compiles what a recording needs."""
        if shape not in self._shapes:
            return None
        if shape not in self._met:
            self._met.add(shape)
            return None
        if shape not in self._recordings:
            try:
                self._recordings[shape] = self._record(shape)
            except torch.OutOfMemoryError:  # there is room to run it, as it has been run before
                self._shapes.discard(shape)
                return None
        return self._recordings[shape]

    def _record(self, shape: StepShape) -> Recording:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        first, hidden = _capture(self._pool, partial(self._forward, shape))
        second, _ = _capture(self._pool, partial(self._draw, shape, hidden))
        return Recording(first.replay, second.replay, hidden)

    def clear(self) -> None:
        """Free them."""
        self._recordings.clear()
        self._met.clear()


def _capture(pool: Any, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
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

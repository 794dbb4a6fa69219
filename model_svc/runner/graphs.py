"""Recorded steps: CUDA graphs by padded size, so that the host launches a decode step with two calls instead of 500.

A step of another size runs in the next larger graph; the rest of its rows are padding, which writes nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model_svc.runner.packed_step import StepShape

_MIXED_TOKENS = (32, 64, 128, 256, 512)  # with more, the device is busy for longer than eager launches take
_FEW_SEQUENCES = 8


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Return the padded numbers of sequences: dense where a row costs much, at most an eighth of padding above."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs + 1, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def recorded_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes to record, the largest first, so that the others fit in the memory it leaves."""
    limit = max(max_num_batched_tokens, max_num_seqs)
    decodes = [StepShape(size, size, True) for size in decode_sizes(max_num_seqs)]
    widths = sorted({min(_FEW_SEQUENCES, max_num_seqs), max_num_seqs})
    mixed = [StepShape(T, S, False) for T in _MIXED_TOKENS for S in widths if limit >= T]
    return sorted(decodes + mixed, key=lambda shape: (shape.num_tokens, shape.num_sequences), reverse=True)


class Shapes:
    """Finds the recorded shape that a step fits in."""

    def __init__(self, shapes: Iterable[StepShape]) -> None:
        shapes = list(shapes)
        self._decode = sorted(shape for shape in shapes if shape.decode)
        self._mixed = sorted(shape for shape in shapes if not shape.decode)
        self._sizes = [shape.num_sequences for shape in self._decode]

    def fit(self, step: StepShape) -> StepShape | None:
        """Return the smallest shape that holds a step, None if it must run as it is."""
        if step.decode:
            at = bisect_left(self._sizes, step.num_sequences)
            return self._decode[at] if at < len(self._decode) else None
        for shape in self._mixed:
            if shape.num_tokens >= step.num_tokens and shape.num_sequences >= step.num_sequences:
                return shape
        return None


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
    shapes: Iterable[StepShape], stage: Callable[[StepShape], None], forward: Forward, draw: Draw
) -> dict[StepShape, Recording]:
    """Record all shapes on the current stream; they share one pool of memory, as only one of them runs at a time.

    `stage` sends a step of padding alone: what runs here must write nowhere.
    """
    pool = torch.cuda.graph_pool_handle()
    recordings = {}
    for shape in shapes:
        stage(shape)
        draw(shape, forward(shape))  # compiles kernels, loads modules, makes cuBLAS choose
        first, hidden = _capture(pool, partial(forward, shape))
        second, _ = _capture(pool, partial(draw, shape, hidden))
        recordings[shape] = Recording(first.replay, second.replay, hidden)
    torch.cuda.synchronize()
    return recordings


def _capture(pool: Any, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture without `torch.cuda.graph`, which collects garbage and empties caches each time: 0.1 s a graph."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        result = function()
    finally:
        graph.capture_end()
    return graph, result

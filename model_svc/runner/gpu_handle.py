"""A step under way on a GPU: what is ready on the device, what will be, and when it was done."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from model_svc.engine.plan import SequenceStep
from model_svc.runner.packed_step import StepShape
from model_svc.runner.recordings import Recording
from model_svc.runner.sampler import TopLogprobs
from model_svc.runner.target_logprobs import Found


@dataclass(frozen=True)
class Clock:
    """When the device began and ended a step; without a device, what the host saw."""

    begin: torch.cuda.Event | float
    end: torch.cuda.Event | float

    def wait_ms(self) -> float:
        """Wait for the end; return how long the step took, waiting for the one before it left out."""
        if isinstance(self.begin, float) or isinstance(self.end, float):
            assert isinstance(self.begin, float), "a clock of two kinds"
            return (time.perf_counter() - self.begin) * 1000
        self.end.synchronize()
        return float(self.begin.elapsed_time(self.end))


@dataclass(frozen=True)
class Computed:
    """A step whose logits lie ready on the device; `hidden` [S, E] is what the head saw.

    Where guesses are checked (`shape.checks`), there are no logits yet and `hidden` [T, E] is that of all tokens.
    """

    sequences: tuple[SequenceStep, ...]
    shape: StepShape
    line: int  # of `Returns`, where its tokens will be
    recording: Recording | None
    hidden: Tensor
    plain: bool = False  # nobody wants special draws; then they may be part of the recording


@dataclass
class GpuHandle:
    """A submitted step: `tokens` will hold a token per row (-1: not sound), `rows` are those of the items' draws.

    `undrawn` until the masks have come that its draws wait for.
    """

    step: int
    items: tuple[SequenceStep, ...]
    rows: list[int]
    bad_slots: frozenset[int]
    begin: torch.cuda.Event | float
    scored: Found
    tokens: Tensor | None = None
    top: TopLogprobs | None = None
    clock: Clock | None = None
    undrawn: Computed | None = None

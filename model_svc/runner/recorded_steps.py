"""Which recording a step runs in, and when recordings are made: a few at the start, the others in idle time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from kernels import dispatch
from model_svc.engine.plan import RunnerInfo
from model_svc.runner import start_times
from model_svc.runner.gpu_step import GpuStep
from model_svc.runner.graphs import (
    LONGEST_RECORDED,
    Shapes,
    adapted_shapes,
    checking_shapes,
    drawing_shapes,
    first_shapes,
    later_shapes,
    recorded_shapes,
    widths,
)
from model_svc.runner.packed_step import StepShape
from model_svc.runner.recordings import Recorder, Recording, Recordings

_LONG = 2 * LONGEST_RECORDED  # longer ones take the same kernels, and this one no longer than a recording
# A recording takes some 40 ms, a prompt without it some 12 more than with it; 15 ms that of a decode step, which takes
# some 1 ms more in the next larger one (H200, 8B). So much is lost before it is made as making it costs.
# With its draws in the same graph it takes 4 us less.
_PATIENCE, _DECODE_PATIENCE, _DRAWING_PATIENCE = 4, 16, 4000


class RecordedSteps:
    """The recordings of a runner's steps: the usual ones, those in a fixed order, those with adapters.

    Without a GPU there are none. Usual steps know nothing of adapters: where none is asked for, they cost nothing.
    """

    def __init__(self, step: GpuStep, info: RunnerInfo, *, on_gpu: bool, graphs: bool) -> None:
        self._step = step
        S, T = info.max_num_seqs, max(info.max_num_batched_tokens, info.max_num_seqs)
        self._size = S, T
        self._checks = checking_shapes(S, T) if info.max_drafts else []
        self._shapes = Shapes(recorded_shapes(S, T) if graphs else (), S, T)
        self._first = Shapes(first_shapes(S, T) if graphs else (), S, T)
        self._recorder = Recorder()
        self._usual = Recordings(self._record, patience=_patience)
        self._fixed = Recordings(self._record, patience=lambda _: 1)  # most deployments never ask for these steps
        self._adapted = Recordings(self._record, patience=_patience)
        # A tile of few rows and one of many are all that its kernels know.
        self._adapted_kinds = [StepShape(n, 1, decode=False, adapters=True) for n in (16, T) if info.has_adapters]
        self._to_load: list[Callable[[], None]] = []
        self._rare: list[Callable[[], None]] = []
        if on_gpu:
            self._fixed.plan(recorded_shapes(S, T) if graphs else ())
        if on_gpu and graphs:
            self._usual.plan([*self._checks, *later_shapes(S, T)])
            if step.group.size == step.group.stages == 1:
                self._usual.plan(drawing_shapes(S))
            if info.has_adapters:
                self._adapted.plan(adapted_shapes(S, T))
            self._to_load = [
                partial(self._run, shape) for shape in (*self._unrecorded(min(T, _LONG)), *self._adapted_kinds)
            ]
            self._rare = self._seldom_asked()

    def record_first(self) -> None:
        """Record what is wanted before the first request."""
        with start_times.part("graphs"):
            self._usual.make(first_shapes(*self._size))
            torch.cuda.synchronize()

    def use_idle_time(self) -> bool:
        """Do one part of what was left for later; tells whether more is left."""
        parts = self._to_load or (self._rare if self._usual.all_made else None)
        if parts:
            try:
                parts.pop(0)()  # its kernels are loaded now, not when a request waits
                torch.cuda.synchronize()
            except torch.OutOfMemoryError:
                parts.clear()  # nobody has asked for them, and what runs must go on
        elif not self._usual.all_made:
            self._usual.make_next()
        else:
            self._adapted.make_next()
        return not (self._usual.all_made and self._adapted.all_made) or bool(self._to_load or self._rare)

    def go_through(self) -> None:
        """Run every kind of step once, of padding alone, for what they launch."""
        S, T = self._size
        for shape in (*recorded_shapes(S, T), *self._unrecorded(T), *_between(S, T)):
            self._run(shape)
        for shape in self._checks:
            self._step.stage_padding(shape)
            self._step.hidden(shape)
        for shape in self._adapted_kinds:
            self._run(shape)
        for rare in self._seldom_asked():
            rare()

    def find(self, step: StepShape, *, fixed: bool, plain: bool = False) -> tuple[StepShape, Recording | None]:
        """Return the shape that a step is to run in, and its recording if there is one.

        That of a step whose draws are all `plain` may hold them.
        """
        shape = self.fit(step)
        if shape.adapters:
            return shape, None if fixed else self._adapted.get(shape)
        recordings = self._fixed if fixed else self._usual
        if plain and (found := recordings.get(shape._replace(draws=True))) is not None:
            return shape, found
        recording = recordings.get(shape)
        if recording is None:
            larger = self._first.fit(shape) if shape.decode else shape._replace(short=False)
            if (found := recordings.made(larger)) is not None:
                return larger, found
        return shape, recording

    def find_checks(self, step: StepShape, max_query_len: int, *, fixed: bool) -> tuple[StepShape, Recording | None]:
        """Return the same for a step with guesses."""
        shape = self._shapes.fit_checks(step, max_query_len)
        return shape, None if fixed or shape.adapters else self._usual.get(shape)

    def fit(self, step: StepShape) -> StepShape:
        """Return the shape that a step runs in launch by launch."""
        return self._shapes.fit(step)

    def clear(self) -> None:
        """Free them."""
        self._usual.clear()
        self._fixed.clear()
        self._adapted.clear()

    def _unrecorded(self, T: int) -> list[StepShape]:
        """Return the shapes of steps of T tokens, too long to record, one for each variant of the kernels."""
        return [StepShape(T, n, decode=False, short=short) for n in widths(self._size[0]) for short in (True, False)]

    def _seldom_asked(self) -> list[Callable[[], None]]:
        """Return what launches the kernels that most deployments never need: steps in a fixed order, rare draws."""
        return [*(partial(self._run_fixed, shape) for shape in _fixed_kinds(*self._size)), *self._step.rare_draws()]

    def _run_fixed(self, shape: StepShape) -> None:
        with dispatch.fixed_order():
            self._run(shape)

    def _run(self, shape: StepShape) -> None:
        step = self._step
        step.stage_padding(shape)
        hidden = step.forward(shape)
        if step.group.is_last:
            step.draw(shape, hidden)

    def _record(self, shape: StepShape) -> Recording:
        """Record a shape on all ranks, or on none: they must agree about which one a step runs in.

        Stages need not: they exchange between recordings, and no padding.
        """
        group = self._step.group
        if group.size == 1:
            return self._recorded(shape)
        try:
            recording = self._recorded(shape)
        except RuntimeError:
            group.least(0)
            raise
        if not group.least(1):
            raise RuntimeError("another rank cannot record it")
        return recording

    def _recorded(self, shape: StepShape) -> Recording:
        step = self._step
        if shape.checks:
            return self._recorder.record(shape, step.stage_padding, step.hidden, None)
        if shape.draws:
            return self._recorder.record(shape, step.stage_padding, step.forward_and_draw, None)
        draw = step.draw if step.group.is_last else None
        return self._recorder.record(shape, step.stage_padding, step.forward, draw)


def _patience(shape: StepShape) -> int:
    if shape.draws:
        return _DRAWING_PATIENCE
    return _DECODE_PATIENCE if shape.decode else _PATIENCE


def _between(S: int, T: int) -> list[StepShape]:
    """Return steps longer than those recorded and shorter than the longest: attention cuts keys by their length.

    Twice as many tokens are half as many parts.
    """
    lengths = [LONGEST_RECORDED << n for n in range(1, 16)]
    return [StepShape(n, width, decode=False) for n in lengths if n < T for width in {widths(S)[0], S}]


def _fixed_kinds(S: int, T: int) -> list[StepShape]:
    """Return a step for each kernel that steps in a fixed order may take: tiles differ by the number of tokens.

    None is long: some idle time is all that they get.
    """
    lengths = {16, 128, LONGEST_RECORDED, min(T, _LONG)}
    return [StepShape(n, 1, decode=False) for n in sorted(lengths) if n <= T] + [StepShape(S, S, decode=True)]

"""When steps are recorded, and what happens when that fails. The card is played: its graphs run again what they saw."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from model_svc.models.decoder import Decoder
from model_svc.runner import recordings
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.graphs import (
    LONGEST_RECORDED,
    checking_shapes,
    drawing_shapes,
    first_shapes,
    later_shapes,
    recorded_shapes,
)
from model_svc.runner.load import make_runner
from model_svc.runner.packed_step import StepShape
from model_svc.runner.recorded_steps import RecordedSteps
from model_svc.runner.recordings import Recorder, Recording, Recordings
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids

SHAPE = StepShape(16, 8, False)
OTHER = StepShape(32, 8, False)
SIZES: dict[str, Any] = {"num_blocks": 400, "block_size": 4, "max_num_seqs": 96, "max_num_batched_tokens": 256}


class PlayedGraph:
    """A graph whose end fails once its middle has, as the driver's does."""

    spoilt = False

    def capture_begin(self, **_: object) -> None:
        assert not gc.isenabled()

    def capture_end(self) -> None:
        if PlayedGraph.spoilt:
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None: ...


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that records nothing."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PlayedGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(PlayedGraph, "spoilt", False)


def made(shape: StepShape) -> Recording:
    return Recording(lambda: None, lambda: None, torch.zeros(shape.num_sequences))


def no_room(_: StepShape) -> Recording:
    raise torch.OutOfMemoryError("CUDA out of memory\nand more")


@pytest.mark.usefixtures("card")
def test_a_capture_that_fails_says_why_and_leaves_the_collector_on() -> None:
    def forward() -> None:
        PlayedGraph.spoilt = True
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        recordings._capture(None, forward)
    assert gc.isenabled()


@pytest.mark.usefixtures("card")
def test_a_step_runs_before_it_is_recorded_and_what_it_runs_on_is_padding() -> None:
    done: list[str] = []

    def forward(_: StepShape) -> Tensor:
        done.append("forward")
        return torch.zeros(1)

    found = Recorder().record(SHAPE, lambda _: done.append("padding"), forward, lambda *_: done.append("draw"))
    assert done == ["padding", "forward", "draw", "forward", "draw"]
    assert torch.equal(found.hidden, torch.zeros(1))


def test_a_planned_shape_is_recorded_once_it_was_missed_too_often() -> None:
    shapes = Recordings(made, patience=lambda _: 2)
    shapes.plan([SHAPE])
    assert [shapes.get(SHAPE) for _ in range(2)] == [None, None]
    found = shapes.get(SHAPE)
    assert found is not None
    assert shapes.get(SHAPE) is found
    assert shapes.get(OTHER) is None
    assert not shapes.make_next()


def test_in_idle_time_what_was_missed_comes_first_and_then_the_order_of_the_plan() -> None:
    shapes = Recordings(made, patience=lambda _: 5)
    third = StepShape(64, 8, False)
    shapes.plan([SHAPE, OTHER, third])
    assert shapes.get(third) is None
    assert [shapes.make_next() for _ in range(3)] == [True, True, False]
    order = list(shapes._made)
    assert order == [third, SHAPE, OTHER]


def test_without_room_it_is_told_once_and_steps_go_on_unrecorded(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[StepShape] = []

    def record(shape: StepShape) -> Recording:
        calls.append(shape)
        return no_room(shape)

    shapes = Recordings(record, patience=lambda _: 1)
    shapes.plan([SHAPE, OTHER])
    with caplog.at_level(logging.WARNING):
        assert [shapes.get(SHAPE) for _ in range(4)] == [None] * 4
        assert not shapes.make_next()
    assert calls == [SHAPE]
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "2 kinds of steps stay unrecorded and run slower: CUDA out of memory"
    ]


def test_the_start_records_few_steps_the_largest_first_and_leaves_the_others() -> None:
    first, later = first_shapes(256, 8192), later_shapes(256, 8192)
    assert first[0] == StepShape(512, 256, False)
    assert [shape.num_sequences for shape in first[1:]] == [256, 192, 128, 64, 48, 32, 16, 8, 4, 2, 1]
    assert all(shape.decode for shape in first[1:])
    assert sorted(first + later) == sorted(recorded_shapes(256, 8192))
    assert later[0] == StepShape(16, 8, False, short=True)
    assert first_shapes(6, 8) == [StepShape(n, n, True) for n in (6, 4, 2, 1)]


class Replay:
    """A played graph that runs its launches again, on the same tensors."""

    count = 0

    def __init__(self, function: Callable[[], Any], result: Any) -> None:
        self._function, self._result = function, result

    def replay(self) -> None:
        Replay.count += 1
        again = self._function()
        if self._result is not None:
            self._result.copy_(again)


@pytest.fixture
def runner(tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch, card: None) -> Iterator[GpuRunner]:
    """A runner that believes to be on a card, and has recorded what a start records."""

    def capture(_pool: object, function: Callable[[], Any]) -> tuple[Replay, Any]:
        result = function()
        return Replay(function, result), result

    monkeypatch.setattr(recordings, "_capture", capture)
    monkeypatch.setattr(Replay, "count", 0)
    made = make_runner(tiny_model, packed=True, max_drafts=4, **SIZES)
    assert isinstance(made, GpuRunner)
    made._recorded = RecordedSteps(made._step, made.info, on_gpu=True, graphs=True)
    with torch.inference_mode():
        made._recorded.record_first()
    yield made


def tokens(runner: Any, num_sequences: int) -> dict[int, list[int]]:
    sequences = [Tracked(n, [5 + n % 50, 9, 14]) for n in range(num_sequences)]
    return token_ids(RunnerDriver(runner).generate(sequences, 3))


# The largest prompts are recorded, too; steps of few answers become one graph with their draws.
@pytest.mark.parametrize(("num_sequences", "before", "after"), [(1, 2, 4), (3, 2, 4), (66, 3, 6)])
def test_answers_are_the_same_before_and_after_idle_time(
    runner: GpuRunner, tiny_model: Decoder, num_sequences: int, before: int, after: int
) -> None:
    wanted = tokens(make_runner(tiny_model, **SIZES), num_sequences)
    assert tokens(runner, num_sequences) == wanted
    assert Replay.count == 2 * before  # forward and draw
    while runner.use_idle_time():
        pass
    kept = Replay.count
    assert tokens(runner, num_sequences) == wanted
    assert Replay.count - kept == after


def test_a_landing_knows_the_token_before_it_also_where_recordings_draw(runner: GpuRunner) -> None:
    while runner.use_idle_time():
        pass
    driver = RunnerDriver(runner)
    first = driver.run(driver.dealer.share(Tracked(0, [5, 9, 14]), 3)).tokens[0].token_id
    ends = (1 << first).to_bytes(-(-runner.info.vocab_size // 32) * 4, "little")
    seq = Tracked(3, [5, 9, 14], sentence_ends=ends)
    driver.run(driver.dealer.share(seq, 3))
    seq.ids.append(first)
    kept, share = Replay.count, driver.dealer.share(seq, 1, fed=True)
    landing = msgspec.structs.replace(share, landing_id=first + 1, landing_bias=1e4)
    assert driver.run(landing).tokens[0].token_id == first + 1
    assert Replay.count - kept == 1  # what draws is not recorded


def test_a_decode_step_of_a_size_for_later_runs_in_the_next_larger_recording(runner: GpuRunner) -> None:
    step = StepShape(66, 66, True)
    shape, recording = runner._recorded.find(step, fixed=False)
    assert shape == StepShape(96, 96, True)
    steps = RecordedSteps(runner._step, runner.info, on_gpu=False, graphs=True)
    assert steps.find(step, fixed=False) == (StepShape(80, 80, True), None)
    assert recording is not None


def test_a_decode_step_that_runs_in_a_larger_recording_waits_longer_for_its_own(runner: GpuRunner) -> None:
    prompt, answers = StepShape(32, 8, False, short=True), StepShape(80, 80, True)
    misses = dict.fromkeys((prompt, answers), 0)
    with torch.inference_mode():
        for shape in misses:
            while runner._recorded._usual.made(shape) is None:
                misses[shape] += 1
                assert runner._recorded.find(shape, fixed=False)[0].num_tokens >= shape.num_tokens
    assert 1 < misses[prompt] < misses[answers] < 100


def test_without_room_for_rare_draws_idle_time_ends_and_steps_go_on(
    runner: GpuRunner, tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner._recorded, "_rare", [no_memory, pytest.fail])
    while runner.use_idle_time():
        pass
    assert tokens(runner, 3) == tokens(make_runner(tiny_model, **SIZES), 3)


def test_no_part_of_idle_time_is_a_long_step(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[int] = []
    monkeypatch.setattr(runner._step, "hidden", lambda shape, *_: longest.append(shape.num_tokens))
    monkeypatch.setattr(runner._step, "last_logits", lambda *_: None)
    monkeypatch.setattr(runner._step, "draw", lambda *_: None)
    steps = RecordedSteps(
        runner._step, msgspec.structs.replace(runner.info, max_num_batched_tokens=8192), on_gpu=True, graphs=True
    )
    monkeypatch.setattr(runner._step, "stage_padding", lambda _: None)
    for part in (*steps._to_load, *steps._rare):
        part()
    assert max(longest) == 2 * LONGEST_RECORDED


def test_idle_time_loads_long_steps_and_records_every_other_kind(runner: GpuRunner) -> None:
    parts, to_load, rare = 1, len(runner._recorded._to_load), len(runner._recorded._rare)
    while runner.use_idle_time():
        parts += 1
    S, T = runner.info.max_num_seqs, runner.info.max_num_batched_tokens
    assert to_load >= 3
    assert rare > 5
    assert parts == to_load + len(later_shapes(S, T)) + len(checking_shapes(S, T)) + len(drawing_shapes(S)) + rare
    for shape in recorded_shapes(S, T):
        assert runner._recorded.find(shape, fixed=False)[1] is not None
        assert runner._recorded.find(shape, fixed=True)[0] == shape
    assert not runner.use_idle_time()

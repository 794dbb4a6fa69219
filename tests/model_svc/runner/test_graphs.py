"""What recording steps does when it fails. The card is played: a graph that keeps what was called."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model_svc.runner import graphs
from model_svc.runner.graphs import LateRecordings
from model_svc.runner.packed_step import StepShape

SHAPE = StepShape(16, 8, False)


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
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PlayedGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(PlayedGraph, "spoilt", False)


def failing(calls: list[None]) -> Callable[[StepShape], Tensor]:
    def forward(_: StepShape) -> Tensor:
        calls.append(None)
        PlayedGraph.spoilt = True
        raise torch.OutOfMemoryError("CUDA out of memory")

    return forward


def draw(_shape: StepShape, _hidden: Tensor) -> None: ...


@pytest.mark.usefixtures("card")
def test_a_capture_that_fails_says_why_and_leaves_the_collector_on() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        graphs._capture(None, lambda: failing([])(SHAPE))
    assert gc.isenabled()


@pytest.mark.usefixtures("card")
def test_a_shape_is_recorded_when_it_comes_for_the_second_time() -> None:
    late = LateRecordings([SHAPE], lambda _: torch.zeros(1), draw)
    assert late.get(SHAPE) is None
    recording: Any = late.get(SHAPE)
    assert recording is not None
    assert late.get(SHAPE) is recording
    assert late.get(SHAPE._replace(num_tokens=32)) is None


@pytest.mark.usefixtures("card")
def test_a_shape_that_there_is_no_room_to_record_runs_without_and_is_not_tried_again() -> None:
    calls: list[None] = []
    late = LateRecordings([SHAPE], failing(calls), draw)
    assert [late.get(SHAPE) for _ in range(4)] == [None] * 4
    assert len(calls) == 1

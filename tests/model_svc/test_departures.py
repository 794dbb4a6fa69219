"""Tokens leave the engine's process where a core is idle: a step later at the most, first and last ones at once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest

from model_svc.departures import Departures
from model_svc.pipe import EngineEnd, Progress, ToService, _Frames
from model_svc.runner.spare_time import SOON_S, SpareTime
from wire.messages import TokenChunk


class Clock:
    """A clock that stands still but while something is computed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def step(self, seconds: float) -> Callable[[], None]:
        def compute() -> None:
            self.now += seconds

        return compute


class Way:
    """Departures over a real pipe, and what has come out of it."""

    def __init__(self, num_threads: int = 2) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._ours = ours
        self._frames: _Frames[ToService] = _Frames(msgspec.msgpack.Decoder(ToService))
        self.clock = Clock()
        self.spare = SpareTime(num_threads, 2, clock=self.clock)
        self.departures = Departures(EngineEnd(ours), self.spare)

    def leave(self, step: int, *, index: int = 1, reason: str | None = None, more_follows: bool = True) -> None:
        chunk = TokenChunk(request_id="r", attempt=0, index=index, token_ids=(7,), finish_reason=reason)
        self.departures.leave(Progress(step=step, chunks=(chunk,)), more_follows=more_follows)

    @property
    def arrived(self) -> list[int]:
        """Return the steps that came since the last look."""
        try:
            data = self._theirs.recv(1 << 16)
        except BlockingIOError:
            return []
        return [message.step for message in self._frames.feed(data) if isinstance(message, Progress)]

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def way() -> Iterator[Way]:
    made = Way()
    made.spare.behind(made.clock.step(0.004))
    yield made
    made.close()


def test_tokens_wait_for_the_spare_time_of_the_next_step(way: Way) -> None:
    way.leave(1)
    assert way.arrived == []
    seen: list[list[int]] = []
    way.spare.behind(lambda: seen.append(way.arrived))  # not while it computes
    assert (seen, way.arrived) == ([[]], [1])
    way.spare.behind(way.clock.step(0.004))
    assert way.arrived == []  # once


def test_a_step_without_spare_time_lets_the_tokens_before_it_go(way: Way) -> None:
    way.leave(1)
    way.leave(2)
    assert way.arrived == [1]
    way.departures.let_go()
    assert way.arrived == [2]


@pytest.mark.parametrize(
    "how", [{"index": 0}, {"reason": "stop"}, {"more_follows": False}], ids=["first", "last", "no step follows"]
)
def test_nobody_waits_for_a_first_or_last_token_nor_for_a_step_that_never_comes(way: Way, how: dict[str, str]) -> None:
    way.leave(1)
    way.leave(2, **how)  # type: ignore[arg-type]
    assert way.arrived == [1, 2]


def test_before_a_prompt_tokens_go_and_behind_it_none_wait(way: Way) -> None:
    way.leave(1)
    way.spare.now()
    assert way.arrived == [1]
    way.leave(2)
    assert way.arrived == [2]


def test_long_steps_are_not_waited_for(way: Way) -> None:
    way.spare.behind(way.clock.step(SOON_S))
    way.leave(1)
    assert way.arrived == [1]


def test_with_a_core_to_spare_nothing_waits() -> None:
    way = Way(num_threads=1)
    way.spare.behind(way.clock.step(0.004))
    way.leave(1)
    assert way.arrived == [1]
    way.close()

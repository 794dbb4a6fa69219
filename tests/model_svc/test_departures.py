"""Tokens leave the engine's process where a core is idle, those of a crowd in company; first and last ones at once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest

from model_svc.departures import CROWD, Departures
from model_svc.engine_messages import Progress, ToService
from model_svc.pipe import EngineEnd, Frames
from model_svc.runner.spare_time import SOON_S, SpareTime
from wire.messages import REASONING, PhaseMark, TokenChunk


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

    def __init__(self, num_threads: int = 2, *, spare: bool = True, stream_interval: int | None = None) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._ours = ours
        self._frames: Frames[ToService] = Frames(msgspec.msgpack.Decoder(ToService))
        self.clock = Clock()
        self.spare = SpareTime(num_threads, 2, clock=self.clock)
        self.departures = Departures(EngineEnd(ours), self.spare if spare else None, stream_interval)

    def leave(
        self,
        step: int,
        *,
        index: int = 1,
        reason: str | None = None,
        marks: tuple[PhaseMark, ...] = (),
        more_follows: bool = True,
        others: int = 0,
    ) -> None:
        chunk = TokenChunk(request_id="r", attempt=0, index=index, token_ids=(7,), finish_reason=reason, marks=marks)
        crowd = [TokenChunk(request_id=f"r{n}", attempt=0, index=step, token_ids=(7,)) for n in range(others)]
        self.departures.leave(Progress(step=step, chunks=(*crowd, chunk)), more_follows=more_follows)

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

    def compute() -> None:
        seen.append(way.arrived)  # not while it computes
        way.clock.now += 0.004

    way.spare.behind(compute)
    assert (seen, way.arrived) == ([[]], [1])
    way.spare.behind(way.clock.step(0.004))
    assert way.arrived == []  # once


def test_a_step_without_spare_time_lets_the_tokens_before_it_go(way: Way) -> None:
    way.leave(1)
    way.leave(2)
    assert way.arrived == [1]
    way.departures.let_go()
    assert way.arrived == [2]


AT_ONCE = pytest.mark.parametrize(
    "how",
    [{"index": 0}, {"reason": "stop"}, {"marks": (PhaseMark(0, 0, REASONING),)}, {"more_follows": False}],
    ids=["first", "last", "the end of thinking", "no step follows"],
)


@AT_ONCE
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


@pytest.mark.parametrize(
    ("num_answers", "step_s", "expected"),
    [
        (CROWD, 0.004, [[], [1, 2], [], [3, 4], [], [5, 6]]),
        (2 * CROWD, 0.004, [[], [], [1, 2, 3], [], [], [4, 5, 6]]),
        (2 * CROWD, SOON_S / 2 + 0.001, [[], [1, 2], [], [3, 4], [], [5, 6]]),
    ],
    ids=["a crowd", "two crowds", "who would wait too long"],
)
def test_tokens_of_crowds_leave_in_company(
    way: Way, num_answers: int, step_s: float, expected: list[list[int]]
) -> None:
    arrived = []
    for step in range(1, 7):
        way.leave(step, others=num_answers - 1)
        way.spare.behind(way.clock.step(step_s))
        arrived.append(way.arrived)
    assert arrived == expected


def test_tokens_of_a_few_do_not_wait_for_one_another(way: Way) -> None:
    way.leave(1, others=CROWD - 2)
    way.spare.behind(way.clock.step(0.004))
    assert way.arrived == [1]


def test_tokens_of_one_answer_leave_together_where_steps_are_too_short_to_be_seen(way: Way) -> None:
    arrived = []
    for step in range(1, 7):
        way.leave(step)
        way.spare.behind(way.clock.step(0.0024))
        arrived.append(way.arrived)
    assert arrived == [[], [], [1, 2, 3], [], [], [4, 5, 6]]


@pytest.mark.parametrize("before", ["a prompt", "a long step"])
def test_company_is_not_waited_for_where_the_next_step_takes_long(way: Way, before: str) -> None:
    way.leave(1, others=CROWD)
    if before == "a prompt":
        way.spare.now()
    else:
        way.spare.behind(way.clock.step(SOON_S))
    assert way.arrived == [1]


@AT_ONCE
def test_a_first_or_last_token_takes_along_what_a_crowd_has_waiting(way: Way, how: dict[str, str]) -> None:
    way.leave(1, others=CROWD)
    way.leave(2, others=CROWD, **how)  # type: ignore[arg-type]
    assert way.arrived == [1, 2]


def test_the_interval_may_be_set_for_any_engine_and_any_number_of_answers() -> None:
    way = Way(spare=False, stream_interval=3)
    arrived = []
    for step in range(1, 8):
        way.leave(step)
        arrived.append(way.arrived)
    assert arrived == [[], [], [1, 2, 3], [], [], [4, 5, 6], []]
    way.close()


def test_an_interval_of_one_parts_a_crowd_too() -> None:
    way = Way(stream_interval=1)
    way.spare.behind(way.clock.step(0.004))
    way.leave(1, others=CROWD)
    way.spare.behind(way.clock.step(0.004))
    assert way.arrived == [1]
    way.close()

"""What the engine's process does while it has no work: what can wait, in short parts, and never before what arrives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from model_svc import engine_process
from model_svc.energy.sampler import Sampler
from model_svc.engine.engine import Engine
from model_svc.engine.plan import StepPlan
from model_svc.engine.request import EngineRequest
from model_svc.engine_messages import CancelSequences, Progress, ToService
from model_svc.engine_process import EngineLoop
from model_svc.pipe import EngineEnd, Frames, frame
from tests.model_svc.scripted_runner import ScriptedRunner, scripted_reply
from wire.messages import Prompt, SamplingParams, TokenChunk, pack_ids


class IdleEngine:
    """An engine without work that notes what it is told."""

    has_work = False

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def cancel(self, request_id: str, _choice: int | None) -> None:
        self._log.append(request_id)


class House:
    """A loop over a real pipe; `log` tells in which order things were done."""

    def __init__(self) -> None:
        ours, self.service = socket.socketpair()
        self._end = ours
        self.log: list[str] = []
        engine: Any = IdleEngine(self.log)
        self.loop = EngineLoop(EngineEnd(ours), engine, None, self.part)
        self.num_parts = 0
        self.arrives: dict[int, str] = {}  # behind which part which request's cancel
        self.done: set[int] = set()  # behind which parts nothing is left
        self.last = 100

    def part(self) -> bool:
        self.num_parts += 1
        self.log.append(f"part {self.num_parts}")
        if (name := self.arrives.get(self.num_parts)) is not None:
            self.service.sendall(frame(msgspec.msgpack.Encoder(), CancelSequences(request_id=name)))
        if self.num_parts == self.last:
            self.service.close()  # the loop ends
            return False
        return self.num_parts not in self.done

    def close(self) -> None:
        self._end.close()
        self.service.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(engine_process, "QUIET_S", 0.0)
    made = House()
    yield made
    made.close()


def test_what_arrives_comes_before_the_next_part(house: House) -> None:
    house.arrives, house.last = {2: "a", 3: "b"}, 4
    with pytest.raises(EOFError):
        house.loop.run()
    assert house.log == ["part 1", "part 2", "a", "part 3", "b", "part 4"]


def test_an_engine_that_stays_awake_looks_for_news_before_it_uses_idle_times(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    has_news = EngineEnd.has_news

    def look(end: EngineEnd, within_s: float) -> bool:
        looks.append(within_s)
        if len(looks) == 3:
            house.service.sendall(frame(msgspec.msgpack.Encoder(), CancelSequences(request_id="a")))
            house.service.close()
        return has_news(end, within_s)

    monkeypatch.setattr(EngineEnd, "has_news", look)
    house.loop._awake_s = 3600.0
    with pytest.raises(EOFError):
        house.loop.run()
    assert house.log == ["a"]
    assert set(looks) == {0}


@pytest.mark.parametrize("said", [True, False])
def test_a_look_for_news_ends_with_news_or_with_its_time(said: bool) -> None:
    ours, service = socket.socketpair()
    with ours, service:
        if said:
            service.sendall(b"x")
        assert EngineEnd(ours).look_for_news(3600.0 if said else 0.01) is said


def test_when_nothing_is_left_the_loop_asks_again_in_the_next_idle_time(house: House) -> None:
    house.done = {1, 3}
    house.loop._idle()
    assert house.log == ["part 1"]
    house.loop._idle()
    assert house.log == ["part 1", "part 2", "part 3"]


def test_a_request_that_is_there_already_is_not_kept_waiting(house: House) -> None:
    house.service.sendall(frame(msgspec.msgpack.Encoder(), CancelSequences(request_id="early")))
    house.last = 1
    with pytest.raises(EOFError):
        house.loop.run()
    assert house.log == ["early", "part 1"]


def test_an_engine_that_nobody_asked_for_anything_yet_waits_until_it_is_quiet(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def has_news(_: EngineEnd, within_s: float) -> bool:
        waits.append(within_s)
        return len(waits) > 3

    monkeypatch.setattr(EngineEnd, "has_news", has_news)
    monkeypatch.setattr(engine_process, "QUIET_S", 0.25)
    house.service.close()
    with pytest.raises(EOFError):
        house.loop.run()
    assert waits == [0.25, 0.0, 0.0, 0.0]
    assert house.num_parts == 3


class SteppingEngine:
    """An engine whose steps say what it is told; it counts what has reached the service before each step."""

    has_work = True

    def __init__(self, steps: list[list[TokenChunk]], service: socket.socket) -> None:
        self.num_arrived: list[int] = []
        self._steps = iter(steps)
        self._service = service
        self._frames: Frames[ToService] = Frames(msgspec.msgpack.Decoder(ToService))

    def step(self) -> list[TokenChunk]:
        try:
            messages = self._frames.feed(self._service.recv(1 << 16))
        except BlockingIOError:
            messages = []
        self.num_arrived.append(sum(isinstance(message, Progress) for message in messages))
        found = next(self._steps, None)
        if found is None:
            raise EOFError
        return found

    def events(self) -> list[Any]:
        return []


def test_tokens_do_not_wait_for_company_behind_a_step_that_says_nothing() -> None:
    ours, service = socket.socketpair()
    service.setblocking(False)
    token = TokenChunk(request_id="r", attempt=0, index=1, token_ids=(7,))
    engine: Any = SteppingEngine([[token], [], []], service)
    loop = EngineLoop(EngineEnd(ours), engine, stream_interval=10)
    loop._load_sent_at = float("inf")  # its load is nobody's company
    with ours, service, pytest.raises(EOFError):
        loop.run()
    assert engine.num_arrived == [0, 0, 1, 0]


class Metered(ScriptedRunner):
    """Uses a joule a step, which is read while it is computed; the service leaves in the last one."""

    def __init__(self, num_steps: int, service: socket.socket) -> None:
        super().__init__(scripted_reply(7))
        self.sampler = Sampler(self, clock=lambda: 0.0)
        self._num_steps = num_steps
        self._service = service

    def joules(self) -> float:
        return float(len(self.plans))

    def submit(self, plan: StepPlan) -> int:
        handle = super().submit(plan)
        self.sampler.read()
        if len(self.plans) == self._num_steps:
            self._service.shutdown(socket.SHUT_WR)
        return handle


def told_by(runner: Metered, ours: socket.socket, service: socket.socket) -> list[float | None]:
    """Have the loop answer one request, and return what its tokens told of energy."""
    engine = Engine(runner, token_bytes=lambda _: b"x", metered=True)
    prompt = Prompt(token_ids=pack_ids([1]), num_tokens=1, max_tokens=5)
    request = EngineRequest(request_id="r", prompt=prompt, sampling=SamplingParams())
    service.sendall(frame(msgspec.msgpack.Encoder(), request))
    with pytest.raises(EOFError):
        EngineLoop(EngineEnd(ours), engine, sampler=runner.sampler).run()
    said = Frames[ToService](msgspec.msgpack.Decoder(ToService)).feed(service.recv(1 << 16))
    return [chunk.energy_j for message in said if isinstance(message, Progress) for chunk in message.chunks]


def test_what_is_read_between_two_steps_is_told_with_the_next_token() -> None:
    ours, service = socket.socketpair()
    with ours, service:
        told = told_by(Metered(5, service), ours, service)
    assert told == pytest.approx([0.0, 2.0, 3.0, 4.0, 5.0])  # before the first reading a step has no price


def test_a_meter_that_fails_ends_what_is_told_and_nothing_else() -> None:
    ours, service = socket.socketpair()
    with ours, service:
        runner = Metered(5, service)
        runner.sampler.failed = True
        assert told_by(runner, ours, service) == [None] * 5

"""SIGKILL at every await of a desk's work: before each command reaches the server, and after it ran but unanswered.

A relay stands between the victim and the server and kills at a given step. The steps are not listed here: the test goes
on to the next one until a victim gets through unharmed, so a new await is a new place to die.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from tests.wire import victim as desk
from wire import topics
from wire.bus import Bus, BusOptions
from wire.messages import Failure, Job, Recalled, Request, Turn

pytestmark = pytest.mark.anyio

HISTORY, TOKENIZER, EDGE = topics.history(0), topics.tokenizer(0, "m"), topics.edge("e")
SURVIVOR = BusOptions(block_s=0.02, claim_idle_s=0.05)


class Victims:
    """Forks desks, one at a time, and knows when they are dead."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._news = process.stdin, TextReceiveStream(process.stdout)
        self._lines: list[str] = []
        self.living: int | None = None

    async def spawn(self, url: str, mode: str) -> int:
        await self._orders.send(f"{url} {mode}\n".encode())
        self.living = int(await self._line())
        return self.living

    async def wait(self) -> int:
        status = int(await self._line())
        self.living = None
        return status

    async def _line(self) -> str:
        while not self._lines:
            self._lines += (await self._news.receive()).splitlines()
        return self._lines.pop(0)


@asynccontextmanager
async def victims() -> AsyncIterator[Victims]:
    command = [sys.executable, desk.__file__]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process(command, env=environ, stderr=subprocess.DEVNULL) as process:
        graveyard = Victims(process)
        try:
            yield graveyard
        finally:
            if graveyard.living is not None:
                os.kill(graveyard.living, signal.SIGKILL)
            process.terminate()


class Execution:
    """Kills the victim at step number `at`: even ones before a command is passed on, odd ones before its reply is."""

    def __init__(self, at: int, is_over: Callable[[], Awaitable[bool]]) -> None:
        self.at, self.is_over = at, is_over
        self.pid = 0
        self.known, self.ended = anyio.Event(), anyio.Event()
        self.killed = False
        self._steps = 0

    async def before(self, command: list[bytes]) -> None:
        await self.known.wait()
        if command[0] == b"XREADGROUP" and await self.is_over():
            await self._end()  # unharmed: it asks for more
        await self._step()

    async def after(self, _command: list[bytes]) -> None:
        await self._step()

    async def _step(self) -> None:
        self._steps += 1
        if self._steps > self.at:
            self.killed = True
            await self._end()

    async def _end(self) -> None:
        if not self.ended.is_set():
            os.kill(self.pid, signal.SIGKILL)
            self.ended.set()
        raise anyio.EndOfStream


async def count(bus: Bus, stream: str) -> int:
    return int(await bus.route.call(stream, "XLEN", stream))


async def admit(bus: Bus, job: Job) -> None:
    await bus.admit(job, {"request": Request(model="m")}, to=HISTORY, ttl_s=60)


async def bury(bus: Bus, bus_url: str, mode: str, is_over: Callable[[], Awaitable[bool]]) -> None:
    """Let a living desk take over what the dead one left."""
    async with Bus.open(bus_url, SURVIVOR) as survivor, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.serve_desks, survivor, mode, "survivor")
        with anyio.fail_after(60):
            while not (await is_over() and await count(bus, HISTORY) == 0):
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()


async def kill_at_every_step(
    bus: Bus,
    bus_url: str,
    make_relay: Any,
    mode: str,
    begin: Callable[[], Awaitable[Any]],
    is_over: Callable[[], Awaitable[bool]],
    check: Callable[[], Awaitable[None]],
) -> int:
    """Return the number of steps at which a victim died."""
    relay = make_relay()
    async with victims() as graveyard, anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        for at in range(200):
            await bus.route.call("", "FLUSHALL")
            await begin()
            execution = Execution(at, is_over)
            relay.before, relay.after = execution.before, execution.after
            with anyio.fail_after(60):
                execution.pid = await graveyard.spawn(relay.url, mode)
                execution.known.set()
                await execution.ended.wait()
                assert await graveyard.wait() == -signal.SIGKILL
            await bury(bus, bus_url, mode, is_over)
            await check()
            assert await count(bus, topics.dead_letter(0)) == 0
            if not execution.killed:
                break
        tasks.cancel_scope.cancel()
    return at


async def test_a_desk_killed_anywhere_in_a_hand_off_loses_and_doubles_nothing(
    bus: Bus, bus_url: str, make_job: Any, make_relay: Any
) -> None:
    begin = partial(admit, bus, make_job())

    async def is_over() -> bool:
        return await count(bus, TOKENIZER) > 0

    async def check() -> None:
        assert await count(bus, TOKENIZER) == 1
        assert await bus.record(0, "r1", "recalled") == {"recalled": Recalled(version=1)}
        assert await count(bus, EDGE) == 0

    steps = await kill_at_every_step(bus, bus_url, make_relay, "pass", begin, is_over, check)
    assert steps >= 2 * 8


async def test_two_desks_in_one_process_killed_anywhere_lose_and_double_nothing(
    bus: Bus, bus_url: str, make_job: Any, make_relay: Any
) -> None:
    """The first hands its job to the second in the very script that adds the entry."""
    job, prefix = make_job(), topics.prefix(0, "m")

    async def begin() -> None:
        for stream, group in ((HISTORY, "history"), (TOKENIZER, "tokenizer")):
            await bus.route.call(stream, "XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
        await admit(bus, job)

    async def is_over() -> bool:
        return await count(bus, prefix) > 0

    async def check() -> None:
        assert await count(bus, prefix) == 1
        assert await count(bus, TOKENIZER) == 0
        assert (await bus.record(0, "r1", "prompt"))["prompt"].num_tokens == 1
        assert await count(bus, EDGE) == 0

    steps = await kill_at_every_step(bus, bus_url, make_relay, "pair", begin, is_over, check)
    assert steps >= 2 * 8


async def test_a_desk_killed_anywhere_in_a_failure_tells_the_edge_and_hands_nothing_on(
    bus: Bus, bus_url: str, make_job: Any, make_relay: Any
) -> None:
    begin = partial(admit, bus, make_job())

    async def is_over() -> bool:
        return await count(bus, EDGE) > 0 and await count(bus, HISTORY) == 0

    async def check() -> None:
        assert await count(bus, TOKENIZER) == 0
        number = await count(bus, EDGE)
        assert number in (1, 2)  # told again if killed between telling and dropping the entry; the edge takes the first
        inbox = bus.inbox(EDGE)
        failures = [await anext(inbox) for _ in range(number)]
        await inbox.aclose()
        for failure in failures:
            assert isinstance(failure, Failure)
            assert (failure.code, failure.param, failure.desk) == ("invalid_request", "messages", "history")

    assert await kill_at_every_step(bus, bus_url, make_relay, "fail", begin, is_over, check) >= 2 * 10


async def test_a_desk_killed_anywhere_in_storing_a_turn_stores_it_once(
    bus: Bus, bus_url: str, make_relay: Any, turn: Turn
) -> None:
    async def begin() -> None:
        await bus.send(HISTORY, turn, maxlen=10)

    async def is_over() -> bool:
        return await count(bus, HISTORY) == 0

    async def check() -> None:
        assert await bus.route.call("{p0}turns", "SCARD", "{p0}turns") == 1

    assert await kill_at_every_step(bus, bus_url, make_relay, "turn", begin, is_over, check) >= 2 * 7

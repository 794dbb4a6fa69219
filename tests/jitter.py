"""Lets things come in another order than they are used to: `make jitter SEED=7 ARGS=tests/gateway`.

What goes to the bus and comes back is late by up to 30 ms, in order on each line; calls of the bus, work in threads and
what HTTP clients read and write start and end a while later. A test that waits for what it needs notices nothing; one
that rests on which of two things comes first fails by some seed. Processes that a test starts are as they were. The
seed and the test's name decide all delays of a thread, as far as the machine keeps to its order.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest
from httpcore._backends.anyio import AnyIOStream

from wire.bus.line import Line
from wire.bus.route import Route

SEED = os.environ.get("TEST_JITTER", "")
_MOST_S = 0.03

Draw = Callable[[], float]


class _Late:
    """Does things in their order, each a while later than it is told."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._todo: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._due = 0.0
        self._loop = asyncio.get_running_loop()

    def do(self, act: Callable[..., Any], *args: Any) -> None:
        self._due = max(self._due, self._loop.time() + self._draw())
        self._todo.append((act, args))
        self._loop.call_at(self._due, self._next)

    def hurry(self) -> None:
        while self._todo:
            self._next()

    def _next(self) -> None:
        if self._todo:
            act, args = self._todo.popleft()
            act(*args)


class _LateTransport:
    """A transport that writes later."""

    def __init__(self, transport: Any, late: _Late) -> None:
        self._transport = transport
        self._late = late

    def write(self, data: bytes) -> None:
        self._late.do(self._write, data)

    def close(self) -> None:
        self._late.hurry()
        self._transport.close()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _slow_lines(patch: pytest.MonkeyPatch, draw: Draw) -> None:
    begin = Line.__init__
    arrivals: dict[int, _Late] = {}

    def begun(self: Line, dialled: Any) -> None:
        begin(self, dialled)
        arrivals[id(self)] = _Late(draw)
        self._transport = _LateTransport(self._transport, _Late(draw))  # type: ignore[assignment]

    patch.setattr(Line, "__init__", begun)
    for name in ("data_received", "eof_received", "connection_lost"):
        arrive = getattr(Line, name)

        def later(self: Line, *args: Any, arrive: Callable[..., None] = arrive) -> None:
            arrivals[id(self)].do(arrive, self, *args)

        patch.setattr(Line, name, later)


def _slow_calls(patch: pytest.MonkeyPatch, cls: type, names: tuple[str, ...], draw: Draw) -> None:
    for name in names:
        call = getattr(cls, name)

        async def later(self: Any, *args: Any, call: Callable[..., Any] = call, **options: Any) -> Any:
            await asyncio.sleep(draw())
            return await call(self, *args, **options)

        patch.setattr(cls, name, later)


def _slow_threads(patch: pytest.MonkeyPatch, draw: Draw) -> None:
    run_sync = anyio.to_thread.run_sync

    async def later(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def slowly(*given: Any) -> Any:
            time.sleep(draw())
            try:
                return work(*given)
            finally:
                time.sleep(draw())

        return await run_sync(slowly, *args, **options)

    patch.setattr(anyio.to_thread, "run_sync", later)


@pytest.fixture(autouse=True)
def jitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perturb a test, if that is asked for."""
    if not SEED:
        return
    dice = random.Random(f"{SEED} {request.node.nodeid}")

    def draw() -> float:
        return dice.choice((0.0, 0.0, 0.3, 1.0)) * dice.uniform(0.0, _MOST_S)

    _slow_lines(monkeypatch, draw)
    _slow_calls(monkeypatch, Route, ("call", "run"), draw)
    _slow_calls(monkeypatch, AnyIOStream, ("read", "write"), draw)
    _slow_threads(monkeypatch, draw)

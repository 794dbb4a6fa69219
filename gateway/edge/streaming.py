"""Writes one answer as Server-Sent Events: sse-starlette's response, with a plan of tasks that thousands can afford.

Where we part from it: its drain on SIGTERM, which cuts streams, is off (the service drains). The end of the body goes
out in one write with the last event (a client that closes at [DONE] can reuse its connection). Comments are only sent
while the stream is silent, so they never delay text. And a stream costs one task beside the one that writes it, which
listens for the client's leaving, where it has five; what must be done in time is a look now and then by a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from gateway.edge.bell import Bell
from gateway.edge.errors import BODY_SEND
from gateway.edge.open_body import OPEN_BODY, OpenBody

AppStatus.enable_automatic_graceful_drain = False

COMMENT = ServerSentEvent(comment="keep-alive", sep="\n").encode()
LONE_COMMENT = b": keep-alive\n"
"""For streams with ids: once an id was seen, some readers dispatch an empty event at a blank line behind a comment."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """Whole events, encoded, to be written at once; `last` ends the body."""

    data: bytes
    last: bool = False


class Live(NamedTuple):
    """Where it rings for the next block of a stream, and what may make its events by a call (None: the source must)."""

    bell: Bell
    at_once: Callable[[], bytes | None]


class EventStream(EventSourceResponse):
    """An SSE response over blocks of encoded events. `gave_up`: the client took nothing for too long.

    `live`: while the source waits for news and the client keeps up, events are written by whoever brings the news.
    """

    def __init__(
        self,
        blocks: AsyncGenerator[Block, None],
        *,
        keep_alive_s: float,
        send_timeout_s: float,
        headers: Mapping[str, str],
        comment: bytes = COMMENT,
        live: Live | None = None,
    ) -> None:
        headers = {**headers, "Cache-Control": "no-cache, no-transform"}
        super().__init__(blocks, headers=headers, ping=keep_alive_s, sep="\n")
        self._blocks = blocks
        self._comment = comment
        self._live = live
        self._send_timeout_s = send_timeout_s
        self._written_at = 0.0
        self._sending_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.gave_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream, to its end or until its client leaves. Raises SendTimeoutError."""
        if scope["method"] == "HEAD":
            await self._send(send, self._head())
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
            return
        # Python resumes a task through all its frames, for each token: this one, with every layer of the application
        # below it, only listens for the client's leaving, and a new one, with none, writes.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_all, scope, send, tasks)
            await cancel_when_gone(receive, tasks.cancel_scope)
        if self.gave_up:
            raise SendTimeoutError

    async def _write_all(self, scope: Scope, send: Send, tasks: TaskGroup) -> None:
        await self.write(scope, send, tasks)
        tasks.cancel_scope.cancel()

    async def write(self, scope: Scope, send: Send, tasks: TaskGroup) -> None:
        """Write the stream in a task group that is its own: it is cancelled when the client takes nothing."""
        body_send = scope.get(BODY_SEND, send)  # past the layers that made the headers
        await self._send(send, self._head())
        self._look(body_send, tasks)
        live, body = self._live, scope.get(OPEN_BODY)
        if live is not None and body is not None:
            live.bell.at_once = partial(self._write_at_once, body, live.at_once)
        try:
            async with aclosing(self._blocks) as blocks:
                async for block in blocks:
                    if block.last:
                        self._stop_looking()
                    body = {"type": "http.response.body", "body": block.data, "more_body": not block.last}
                    await self._send(body_send, body)
        finally:
            self._stop_looking()
            if live is not None:
                live.bell.at_once = None

    def _write_at_once(self, body: OpenBody, make: Callable[[], bytes | None]) -> bool:
        """Write what is new, unless its source or the client makes us wait; tell whether that is done."""
        data = make() if self._sending_since is None and body.takes else None
        if data:
            body.write(data)
            self._written_at = monotonic()
        return data is not None

    def _head(self) -> dict[str, object]:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        self._sending_since = monotonic()
        await send(message)
        self._sending_since = None
        self._written_at = monotonic()

    def _look(self, send: Send, tasks: TaskGroup) -> None:
        """Fill silence, end a response whose client takes nothing, and say when to look again."""
        now = monotonic()
        sent_for_s = now - (self._sending_since or now)
        if sent_for_s >= self._send_timeout_s:
            self.gave_up = True
            tasks.cancel_scope.cancel()
            return
        silent_s = now - self._written_at
        if self._sending_since is not None:
            silent_s = 0.0  # a client that takes no text takes no comment either
        elif silent_s >= self.ping_interval:
            silent_s = 0.0
            tasks.start_soon(self._fill_silence, send)
        again_s = min(self.ping_interval - silent_s, self._send_timeout_s - sent_for_s)
        self._timer = asyncio.get_running_loop().call_later(again_s, self._look, send, tasks)

    async def _fill_silence(self, send: Send) -> None:
        if self._timer is not None:  # else the last event went out since this was asked for
            await self._send(send, {"type": "http.response.body", "body": self._comment, "more_body": True})

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the client has left."""
    await until_gone(receive)
    scope.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the client has left, or has all of its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass

"""Writes one answer as Server-Sent Events.

The end of the body goes out in one write with the last event (a client that closes at [DONE] can reuse its connection).
Comments are only sent while the stream is silent, so they never delay text. A stream costs one task beside the one that
writes it, which listens for the client's leaving; what must be done in time is a look now and then by a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from starlette.types import Receive, Scope, Send

from gateway.edge.errors import BODY_SEND

COMMENT = b": keep-alive\n\n"
LONE_COMMENT = b": keep-alive\n"
"""For streams with ids: once an id was seen, some readers dispatch an empty event at a blank line behind a comment."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class SendTimeoutError(TimeoutError):
    """The client took nothing for too long."""


class Block(NamedTuple):
    """Whole events, encoded, to be written at once; `last` ends the body."""

    data: bytes
    last: bool = False


class EventStream:
    """An SSE response over blocks of encoded events. `gave_up`: the client took nothing for too long."""

    def __init__(
        self,
        blocks: AsyncGenerator[Block, None],
        *,
        keep_alive_s: float,
        send_timeout_s: float,
        headers: Mapping[str, str],
        comment: bytes = COMMENT,
    ) -> None:
        self._blocks = blocks
        more = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._start = {"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *more]}
        self._comment = comment
        self._keep_alive_s = keep_alive_s
        self._send_timeout_s = send_timeout_s
        self._written_at = 0.0
        self._sending_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.gave_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream, to its end or until its client leaves. Raises SendTimeoutError."""
        if scope["method"] == "HEAD":
            await self._send(send, self._start)
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope)
            await self.write(scope, send, tasks)
            tasks.cancel_scope.cancel()
        if self.gave_up:
            raise SendTimeoutError

    async def write(self, scope: Scope, send: Send, tasks: TaskGroup) -> None:
        """Write the stream in a task group that is its own: it is cancelled when the client takes nothing."""
        body_send = scope.get(BODY_SEND, send)  # past the layers that made the headers
        await self._send(send, self._start)
        self._look(body_send, tasks)
        try:
            async with aclosing(self._blocks) as blocks:
                async for block in blocks:
                    if block.last:
                        self._stop_looking()
                    body = {"type": "http.response.body", "body": block.data, "more_body": not block.last}
                    await self._send(body_send, body)
        finally:
            self._stop_looking()

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
        elif silent_s >= self._keep_alive_s:
            silent_s = 0.0
            tasks.start_soon(self._send, send, {"type": "http.response.body", "body": self._comment, "more_body": True})
        again_s = min(self._keep_alive_s - silent_s, self._send_timeout_s - sent_for_s)
        self._timer = asyncio.get_running_loop().call_later(again_s, self._look, send, tasks)

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()

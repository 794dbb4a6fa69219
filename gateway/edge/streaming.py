"""Writes one answer as Server-Sent Events, on top of sse-starlette.

Where we part from it: the end of the body goes out in one write with the last event (a client that closes at [DONE] can
reuse its connection); its drain on SIGTERM, which cuts streams, is off (the service drains); comments are only sent
while the stream is silent, so they never delay text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import NamedTuple

import anyio
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from gateway.edge.errors import BODY_SEND

AppStatus.enable_automatic_graceful_drain = False

COMMENT = ServerSentEvent(comment="keep-alive", sep="\n").encode()
LONE_COMMENT = b": keep-alive\n"
"""For streams with ids: once an id was seen, some readers dispatch an empty event at a blank line behind a comment."""


class Block(NamedTuple):
    """Whole events, encoded, to be written at once; `last` ends the body."""

    data: bytes
    last: bool = False


class EventStream(EventSourceResponse):
    """An SSE response over blocks of encoded events."""

    def __init__(
        self,
        blocks: AsyncGenerator[Block, None],
        *,
        keep_alive_s: float,
        send_timeout_s: float,
        headers: Mapping[str, str],
        comment: bytes = COMMENT,
    ) -> None:
        super().__init__(
            blocks,
            sep="\n",
            ping=keep_alive_s,
            headers={**headers, "Cache-Control": "no-cache, no-transform"},
        )
        self._blocks = blocks
        self._comment_line = comment
        self._send_timeout_s = send_timeout_s
        self._written_at = 0.0
        self._sending_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream; events go to the server directly, past the layers that made the headers."""
        self._body_send = scope.get(BODY_SEND, send)
        await super().__call__(scope, receive, send)

    async def _stream_response(self, send: Send) -> None:
        await self._write(
            send, {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._blocks) as blocks:
            async for block in blocks:
                body = {"type": "http.response.body", "body": block.data, "more_body": not block.last}
                self.active = not block.last
                await self._write(self._body_send, body)

    async def _write(self, send: Send, message: dict[str, object]) -> None:
        self._sending_since = monotonic()
        await send(message)
        self._sending_since = None
        self._written_at = monotonic()

    async def _ping(self, send: Send) -> None:
        """Fill silence, and end a response whose client takes nothing: one look now and then, not a timer a write."""
        del send
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._comment, self._body_send)
            while True:
                now = monotonic()
                sent_for_s = now - (self._sending_since or now)
                if sent_for_s >= self._send_timeout_s:
                    raise SendTimeoutError
                await anyio.sleep(max(self._send_timeout_s - sent_for_s, self._send_timeout_s / 8))

    async def _comment(self, send: Send) -> None:
        comment = self._comment_line
        while self.active:
            left_s = self._written_at + self.ping_interval - monotonic()
            if left_s > 0:
                await anyio.sleep(left_s)
            elif self._sending_since is not None:  # a client that takes no text takes no comment either
                await anyio.sleep(self.ping_interval)
            elif self.active:
                await self._write(send, {"type": "http.response.body", "body": comment, "more_body": True})

    @staticmethod
    async def _listen_for_exit_signal() -> None:
        await anyio.sleep_forever()

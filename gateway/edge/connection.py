"""A uvicorn connection that idle clients cannot hold open, and whose answers begin with a single write.

A request's head must come in time and be of a size; what is no HTTP is answered behind the answers that are owed, never
in the middle of one. An answer's head leaves with what follows at once: each write wakes who reads, and a head that
goes alone wakes the client for nothing, while its reader takes a core just when the first token is made into an event.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.edge.errors import error_object
from gateway.edge.jsontext import to_json
from gateway.edge.open_body import OPEN_BODY, OpenBody
from gateway.edge.room import Room
from gateway.edge.upgrades import without_offer
from wire.errors import HeadraceError, InvalidRequestError, UnavailableError

LEAST_BYTES_PER_S = 100.0
"""Who sends at least so fast is waited for beyond the time that anybody has."""

_HEAD = b"HTTP/1.1 "


class Joining:
    """A transport that keeps the head of an answer for what else is written in the same turn of the loop."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write, or keep a head until the next write or the end of the turn."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            asyncio.get_running_loop().call_soon(self._let_go)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close behind what was written."""
        self._let_go()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _let_go(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol over such a transport."""

    def __init__(self, *args: Any, head_timeout_s: float, max_head_bytes: int, room: Room, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timeout_s = head_timeout_s
        self._max_head_bytes = max_head_bytes
        self._room = room
        self._in_head = self._is_broken = self._offers = False
        self.is_half_closed = False  # the client sends nothing more, and may read, or be gone: both look alike
        self._head_since = 0.0
        self._num_read = self._num_parsed = 0  # bytes of this head: in reads that were nothing else, and in its fields
        self._head_timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        self.waits_since = self.loop.time()

    @property
    def waits(self) -> bool:
        """Whether no request of this connection is being worked on."""
        return self._answering is None or self._answering.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take over a connection; one that says nothing is ended as one between two requests."""
        super().connection_made(cast(asyncio.Transport, Joining(transport)))
        if not self._room.make():
            self._refuse(503, UnavailableError("This server has no room for another connection."))
            return
        self._room.enter(self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._room.leave(self)
        self._end_head()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless a head grows beyond its size."""
        if self._is_broken or self.transport.is_closing():
            return
        only_head = self._in_head
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("This is not a valid HTTP request.")
            return
        if self._in_head and only_head:
            self._num_read += len(data)
            if self._num_read > self._max_head_bytes:
                self.send_400_response("")
        elif self._head_timer is None and self.waits and not self.transport.is_closing():
            self._begin_head()  # blank lines before a request

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a connection whose client has closed its side until what it had asked for by then is answered."""
        if self.waits or self.cycle.more_body:
            return False
        self._end_head()
        self.cycle.keep_alive, self.is_half_closed = False, True
        cast(RequestResponseCycle, self._answering).message_event.set()
        return True

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._in_head, self._num_read, self._num_parsed = True, 0, 0
        if self._head_timer is None:
            self._begin_head()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to serve a request."""
        self._end_head()
        self._offers = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offers:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Let the request know that it has all of its body."""
        if not self._offers:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; an answer that is owed goes out first, and nothing behind it is read."""
        owed = self._answering
        if owed is not None and not owed.response_complete:
            self.pipeline.clear()
            if self.cycle is not owed or owed.response_started or not owed.more_body:
                owed.keep_alive, self._is_broken = False, True
                return
        if max(self._num_read, self._num_parsed) > self._max_head_bytes:
            message = f"The request's address and headers are larger than {self._max_head_bytes} bytes."
            self._refuse(431, InvalidRequestError(message))
        else:
            self._refuse(400, InvalidRequestError(msg))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        cast(Scope, cycle.scope)[OPEN_BODY] = OpenBody(cycle)
        if cycle.scope["http_version"] == "1.0":
            app = _unchunked(app, cycle)
        app = _listening(app, cycle, self)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def _parse(self, data: bytes) -> None:
        """Parse on; a request that offers another protocol is read once more without the offer."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offered:
                rest = rest[offered.args[0] :]
                head = without_offer(self.parser.get_method(), self.url, self.headers)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(head)

    def _count(self, num_bytes: int) -> None:
        self._num_parsed += num_bytes
        if self._num_parsed > self._max_head_bytes:
            raise ValueError("too large a head")  # the parser stops; see send_400_response

    def _begin_head(self) -> None:
        self._head_since = self.loop.time()
        self._head_timer = self.loop.call_later(self._head_timeout_s, self._look_at_head)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _look_at_head(self) -> None:
        """End a connection whose head is late. While an answer goes out it is not: we do not read then."""
        spent_s = self.loop.time() - self._head_since
        left_s = self._head_timeout_s + self._num_read / LEAST_BYTES_PER_S - spent_s
        if not self.waits:
            left_s = self._head_timeout_s
        if left_s > 0:
            self._head_timer = self.loop.call_later(left_s, self._look_at_head)
        elif self._in_head:
            self._refuse(408, InvalidRequestError(f"The request's headers did not come within {spent_s:.0f} s."))
        else:
            self.transport.close()

    def _refuse(self, status: int, error: HeadraceError) -> None:
        body = to_json(error_object(error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def _unchunked(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Return the app with answers for a client that knows no chunks: they end with the connection."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        cycle.chunked_encoding = False

        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return serve


def _listening(app: ASGIApp, cycle: RequestResponseCycle, connection: Connection) -> ASGIApp:
    """Return the app for a client that may close its side: whoever listens for its leaving, to save work, is told so.

    Most clients that close their side have left, and only a write could tell. What takes no work is answered.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        has_all = False

        async def listen() -> Message:
            nonlocal has_all
            if not (has_all and connection.is_half_closed):
                message = await receive()  # one that is nothing new, when the client closes its side meanwhile
                has_all = not message.get("more_body", False)
                return message
            cycle.disconnected = True
            connection.transport.close()
            return {"type": "http.disconnect"}

        await app(scope, listen, send)

    return serve

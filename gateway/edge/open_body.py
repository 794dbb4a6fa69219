"""The body of an answer in progress: whoever brings news can write it in the same turn of the event loop.

The server's `send` is to be awaited, so it needs a task, and waking one costs as much as making the event.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

OPEN_BODY = "headrace.open_body"
"""Where the scope holds it, beside a server that has one."""


class OpenBody:
    """A body that is sent in chunks. Its head and its end go by the server's `send`."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def takes(self) -> bool:
        """Whether a piece can go out now: the body has begun, the client is there, and it is not behind."""
        cycle = self._cycle
        is_open = cycle.response_started and not cycle.response_complete and not cycle.disconnected
        return bool(is_open and cycle.chunked_encoding and not cycle.flow.write_paused)

    def write(self, data: bytes) -> None:
        """Send a piece, which is not empty, where `takes` holds."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

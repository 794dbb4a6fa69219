"""Many open streams from one client process, read raw: what the client spends must not be what is measured.

Bytes are looked at as the loop reads them, by no task and without a parser: a few microseconds a read, where a task
that waits for each read takes three times as many, on the very cores that a server on this machine would use.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, cast

_TEXT, _NO_TEXT = b'"content":"', b'"content":""'
_EVENT, _END = b"data: ", b"data: [DONE]"
_TOKENS = b'"completion_tokens":'


@dataclass
class Stream:
    """What one stream brought: events, when those with text came, whether it ended well.

    Times are those of `time.perf_counter`. `counts` says how many tokens there were by each of them, for a server that
    is asked to tell with every event (`continuous_usage_stats`), else it is of zeros.
    """

    began: float = 0.0
    num_events: int = 0
    texts: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def ttft_s(self) -> float:
        """Return the seconds to the first text; 0 if none came."""
        return self.texts[0] - self.began if self.texts else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Return the seconds between reads that brought text."""
        return [later - earlier for earlier, later in pairwise(self.texts)]

    def pace_s(self, begin: float, end: float) -> float:
        """Return the seconds a token between two points in time. Raises ValueError if too few came, or were told of."""
        first, last = bisect_left(self.texts, begin), bisect_right(self.texts, end) - 1
        if last <= first or self.counts[last] == self.counts[first]:
            raise ValueError("too few tokens came in that time")
        return (self.texts[last] - self.texts[first]) / (self.counts[last] - self.counts[first])


class _Reader(asyncio.Protocol):
    """One connection: sends its request, looks at what comes, and says when it is over."""

    def __init__(self, request: bytes, stream: Stream, over: asyncio.Future[None], tell: Callable[[], None]) -> None:
        self._request = request
        self._stream = stream
        self._over = over
        self._tell = tell  # of first texts and of ends
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._stream.began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        stream, now = self._stream, time.perf_counter()
        whole = self._tail + data  # what is looked for may come in two pieces
        stream.num_events += whole.count(_EVENT) - self._tail.count(_EVENT)
        self._tail = whole[1 - len(_END) :]
        if data.count(_TEXT) > data.count(_NO_TEXT):
            stream.texts.append(now)
            told = data.rfind(_TOKENS) + len(_TOKENS)
            stream.counts.append(int(data[told : told + 12].partition(b",")[0]) if told >= len(_TOKENS) else 0)
            if len(stream.texts) == 1:
                self._tell()
        if _END in whole:
            stream.done = True
            self._tell()
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._over.done():
            self._over.set_result(None)


class _Once:
    """Calls back once when all streams have had text, and once when the first ends after that."""

    def __init__(self, streams: Sequence[Stream], calls: Sequence[Callable[[], None]]) -> None:
        self._calls = list(calls)
        self._tests: list[Callable[[], bool]] = [
            lambda: all(stream.texts for stream in streams),
            lambda: any(stream.done for stream in streams),
        ]

    def look(self) -> None:
        while self._calls and self._tests[-len(self._calls)]():
            self._calls.pop(0)()


async def read_streams(
    port: int,
    bodies: Sequence[dict[str, Any]],
    path: str = "/v1/chat/completions",
    *,
    on_full: Callable[[], None] = lambda: None,
    on_end: Callable[[], None] = lambda: None,
) -> list[Stream]:
    """Open a stream for each body at once and read all to their ends.

    `on_full` is called when every stream has had text, `on_end` when the first of them ends after that.
    """
    loop = asyncio.get_running_loop()
    streams = [Stream() for _ in bodies]
    ends: list[asyncio.Future[None]] = [loop.create_future() for _ in bodies]
    once = _Once(streams, (on_full, on_end))
    for stream, body, over in zip(streams, bodies, ends, strict=True):
        make = partial(_Reader, _request(port, path, body), stream, over, once.look)
        await loop.create_connection(make, "127.0.0.1", port)
    for over in ends:
        await over
    return streams


def _request(port: int, path: str, body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer none\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw

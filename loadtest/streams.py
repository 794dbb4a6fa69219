"""Many open streams from one client process, read raw: what the client spends must not be what is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

_READ_BYTES = 1 << 16


@dataclass
class Stream:
    """What one stream brought: events, the time to its first text, the gaps between reads, whether it ended well."""

    num_events: int = 0
    ttft_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    done: bool = False


async def read_streams(port: int, bodies: Sequence[dict[str, Any]], path: str = "/v1/chat/completions") -> list[Stream]:
    """Open a stream for each body at once and read all to their ends."""
    streams = [Stream() for _ in bodies]
    async with anyio.create_task_group() as tasks:
        for stream, body in zip(streams, bodies, strict=True):
            tasks.start_soon(_read, port, path, body, stream)
    return streams


async def _read(port: int, path: str, body: dict[str, Any], stream: Stream) -> None:
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer none\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    async with await anyio.connect_tcp("127.0.0.1", port) as tcp:
        started = last = time.perf_counter()
        await tcp.send(head.encode() + raw)
        tail = b""
        while not stream.done:
            try:
                piece = await tcp.receive(_READ_BYTES)
            except anyio.EndOfStream:
                return
            now = time.perf_counter()
            # An event's first bytes may be cut; the tail is too short to hold one that was counted already.
            stream.num_events += (tail + piece).count(b"data: ")
            if b'"content":" ' in piece or b'"content": " ' in piece:
                if not stream.ttft_s:
                    stream.ttft_s = now - started
                else:
                    stream.gaps_s.append(now - last)
                last = now
            stream.done = b"data: [DONE]" in tail + piece
            tail = (tail + piece)[-5:] if not stream.done else b""

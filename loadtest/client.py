"""One streamed request against an OpenAI-style server, timed on this side of the wire."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import anyio
import httptools
import httpx
import msgspec
from anyio.abc import ByteStream

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 300.0


class Sample(msgspec.Struct, kw_only=True):
    """What one request did. Times in seconds; `start_s` counts from the start of the run.

    `ttft_s` is send to first text; `gaps_s` are the later gaps between text chunks; token counts are the server's.
    """

    start_s: float
    ttft_s: float = 0.0
    e2el_s: float = 0.0
    gaps_s: list[float] = []
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def tpot_s(self) -> float:
        """Return the mean time per output token after the first."""
        return (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


def new_client(url: str, connections: int, api_key: str | None) -> httpx.AsyncClient:
    """Return a client that keeps enough connections alive for the run."""
    limits = httpx.Limits(max_connections=connections + 8, max_keepalive_connections=connections + 8)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, headers=headers, trust_env=False)


def _text_of(chunk: dict[str, Any]) -> bool:
    """Tell whether a chat chunk carries text (the role-only opener does not count as a first token)."""
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or choice.get("text"):
            return True
    return False


class StreamClient:
    """Streamed chat requests over kept connections.

    Not over httpx: it takes a third of a millisecond of processor time for each event, on the very cores that a server
    on the same machine would use.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or (443 if self._tls else 80)
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = (
            f"POST {parts.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\n{key}Content-Length: "
        )
        self._idle: list[ByteStream] = []

    async def __aenter__(self) -> StreamClient:
        """Open the client."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close what is idle."""
        while self._idle:
            await self._idle.pop().aclose()

    async def measure(self, body: dict[str, Any], run_start: float) -> Sample:
        """Send one streamed chat request and read it to the end. Failures become `Sample.error`."""
        sample = Sample(start_s=time.perf_counter() - run_start)
        sent = time.perf_counter()
        answer = _Answer(sample, sent)
        raw = msgspec.json.encode(body)
        connection: ByteStream | None = None
        try:
            connection = await self._connection()
            await connection.send(f"{self._head}{len(raw)}\r\n\r\n".encode() + raw)
            with anyio.fail_after(READ_TIMEOUT_S) as scope:
                while not answer.complete:
                    answer.feed(await connection.receive())
                    if scope.deadline - anyio.current_time() < READ_TIMEOUT_S / 2:  # not a timer for each event
                        scope.deadline = anyio.current_time() + READ_TIMEOUT_S
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, httptools.HttpParserError) as error:
            sample.error = sample.error or f"{type(error).__name__}: {error}"
        sample.e2el_s = time.perf_counter() - sent
        if connection is not None:
            if answer.complete and answer.keeps_connection:
                self._idle.append(connection)
            else:
                await anyio.aclose_forcefully(connection)
        return sample

    async def _connection(self) -> ByteStream:
        if self._idle:
            return self._idle.pop()
        with anyio.fail_after(CONNECT_TIMEOUT_S):
            if self._tls:
                return await anyio.connect_tcp(self._host, self._port, tls=True, tls_standard_compatible=False)
            return await anyio.connect_tcp(self._host, self._port)


class _Answer:
    """The answer to one request while it comes: the parser's callbacks, and the events in the body."""

    def __init__(self, sample: Sample, sent: float) -> None:
        self.complete = self.keeps_connection = False
        self._sample = sample
        self._sent = self._last = self._now = sent
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection."""
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        """Take bytes of the body."""
        if self._parser.get_status_code() != 200:
            self._rest += piece
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                self._last = _note(self._sample, msgspec.json.decode(line[5:]), self._sent, self._last, self._now)

    def on_message_complete(self) -> None:
        """Take note of the end."""
        self.complete, self.keeps_connection = True, self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        if status != 200:
            self._sample.error = f"HTTP {status}: {self._rest[:200].decode(errors='replace')}"


def _note(sample: Sample, chunk: dict[str, Any], sent: float, last: float, now: float) -> float:
    if "error" in chunk:
        sample.error = str(chunk["error"].get("message", chunk["error"]))
    usage = chunk.get("usage")
    if usage:
        sample.prompt_tokens = usage["prompt_tokens"]
        sample.output_tokens = usage["completion_tokens"]
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if not _text_of(chunk):
        return last
    if not sample.ttft_s:
        sample.ttft_s = now - sent
    else:
        sample.gaps_s.append(now - last)
    return now

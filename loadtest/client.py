"""One streamed request against an OpenAI-style server, timed on this side of the wire."""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec

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


async def measure(client: httpx.AsyncClient, body: dict[str, Any], run_start: float) -> Sample:
    """Send one streamed chat request and read it to the end. Failures become `Sample.error`."""
    sample = Sample(start_s=time.perf_counter() - run_start)
    sent = last = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                sample.error = f"HTTP {reply.status_code}: {(await reply.aread())[:200].decode(errors='replace')}"
                return sample
            rest = b""
            async for piece in reply.aiter_raw():
                now = time.perf_counter()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                        continue
                    last = _note(sample, msgspec.json.decode(line[5:]), sent, last, now)
    except httpx.HTTPError as error:
        sample.error = f"{type(error).__name__}: {error}"
    sample.e2el_s = time.perf_counter() - sent
    return sample


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

"""What uvicorn and sse-starlette cost by themselves: the same events as an answer of ours, out of nowhere.

python -m loadtest.floor_server PORT
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio.lowlevel
import msgspec
import uvicorn
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


async def chat(request: Request) -> Response:
    """Stream `max_tokens` tokens as chat completion chunks."""
    body = msgspec.json.decode(await request.body())
    return EventSourceResponse(_events(body["model"], int(body["max_tokens"])), sep="\n", ping=3600)


async def _events(model: str, num_tokens: int) -> AsyncIterator[str]:
    base = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
    yield _chunk(base, {"role": "assistant", "content": ""})
    for _ in range(num_tokens):
        yield _chunk(base, {"content": " river"})
        await anyio.lowlevel.checkpoint()
    yield _chunk(base, {}, "length")
    yield "[DONE]"


def _chunk(base: dict[str, Any], delta: dict[str, str], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return msgspec.json.encode({**base, "choices": [choice]}).decode()


async def _ready(_request: Request) -> Response:
    return PlainTextResponse("ready")


app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health/ready", _ready)])

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", backlog=4096)

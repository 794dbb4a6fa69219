"""A judge over HTTP for tests: it keeps what it was asked and answers as it is told, when it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.edge.room import Room
from gateway.edge.server import serve_http
from gateway.edge.settings import EdgeSettings
from tests.ports import free_port


class JudgeServer:
    """`verdict` gives status and body for a text; `gates` are waited for before a text that contains the key."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.verdict: Callable[[str], tuple[int, bytes]] = lambda text: (
            200,
            msgspec.json.encode({"flagged": "zorg" in text}),
        )
        self.gates: dict[str, anyio.Event] = {}
        self.url = ""
        self._news = anyio.Event()

    async def answer(self, request: Request) -> Response:
        """Answer one window."""
        body: dict[str, Any] = msgspec.json.decode(await request.body())
        self.asked.append(body)
        self.headers.append(request.headers.get("authorization"))
        self._news.set()
        for key, gate in self.gates.items():
            if key in body["text"]:
                await gate.wait()
        status, content = self.verdict(body["text"])
        return Response(content, status)

    async def until(self, count: int) -> None:
        """Wait until so many windows were asked for."""
        with anyio.fail_after(60):
            while len(self.asked) < count:
                self._news = anyio.Event()
                await self._news.wait()


@asynccontextmanager
async def judge_server() -> AsyncIterator[JudgeServer]:
    """Run a judge for the time of a block."""
    judge = JudgeServer()
    app = Starlette(routes=[Route("/judge", judge.answer, methods=["POST"])])
    settings = EdgeSettings(port=free_port())
    judge.url = f"http://127.0.0.1:{settings.port}/judge"
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_http, app, settings, anyio.Event(), Room())
        yield judge
        tasks.cancel_scope.cancel()

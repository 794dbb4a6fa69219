"""The HTTP server ends with its block: what still answers then is cut off, and has cleaned up."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Receive, Scope, Send

from gateway.edge.room import Room
from gateway.edge.server import serve_http
from gateway.edge.settings import EdgeSettings
from tests.ports import free_port

pytestmark = pytest.mark.anyio


async def test_an_answer_that_heeds_nobody_has_cleaned_up_when_the_server_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, has_cleaned_up = anyio.Event(), anyio.Event()

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        try:
            began.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
            has_cleaned_up.set()

    async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await serve_http(app, settings, anyio.Event(), Room(), task_status=task_status)

    settings = EdgeSettings(port=free_port())
    monkeypatch.setattr("gateway.edge.server._CLOSE_S", 0.05)
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve)
        async with await anyio.connect_tcp("127.0.0.1", settings.port) as client:
            await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await began.wait()
            tasks.cancel_scope.cancel()
    assert has_cleaned_up.is_set()

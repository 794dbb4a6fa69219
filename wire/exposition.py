"""Serves a process's metrics on a port of their own: GET /metrics, one answer a connection.

Desks speak no HTTP otherwise, so this is as small as a scraper needs. It belongs on loopback or a private network.
"""

from __future__ import annotations

import anyio
from anyio.abc import SocketStream, TaskStatus
from prometheus_client import CONTENT_TYPE_LATEST

from wire import metrics

_PATIENCE_S = 5.0
_MAX_HEAD = 8192


async def serve_metrics(host: str, port: int, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Answer scrapes until cancelled. Raises OSError when the address is taken."""
    async with await anyio.create_tcp_listener(local_host=host, local_port=port) as listener:
        task_status.started()
        await listener.serve(_answer)


async def _answer(stream: SocketStream) -> None:
    async with stream:
        with anyio.move_on_after(_PATIENCE_S):
            try:
                await stream.send(await _reply(await _request_line(stream)))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return


async def _request_line(stream: SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD:
        head += await stream.receive()
    return head.partition(b"\r\n")[0]


async def _reply(request_line: bytes) -> bytes:
    method, path, *_ = [*request_line.split(b" "), b""]
    if path.partition(b"?")[0] != b"/metrics":
        return _response("404 Not Found", b"only /metrics is here\n", "text/plain")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", b"only GET\n", "text/plain")
    body = await metrics.render()
    return _response("200 OK", b"" if method == b"HEAD" else body, CONTENT_TYPE_LATEST)


def _response(status: str, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body

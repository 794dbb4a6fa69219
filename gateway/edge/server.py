"""uvicorn inside our task group: our socket, our signals, our drain.

The socket options end connections of clients that vanished without a FIN: TCP_USER_TIMEOUT when sent bytes are not
acknowledged or a window stays shut, keep-alive probes when nothing is being sent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from gateway.edge.connection import Connection
from gateway.edge.room import Room
from gateway.edge.settings import EdgeSettings
from wire.process import names_setting

_LONGEST_S = 2 * 32_767  # half of it is the longest that Linux keeps between probes
_KEEP_ALIVE_PROBES = 3
_CLOSE_S = 2.0
_IDLE_S = 75


class _Server(uvicorn.Server):
    """A server that leaves signal handlers alone: the process may run other desks."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    def stop_accepting(self, listener: socket.socket) -> None:
        """Leave new connections to the other edges on this port, and end those that are idle."""
        for server in self.servers:
            server.close()
        listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close at once: what should finish has finished before. A cut answer sees its client leave and cleans up."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.close()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_CLOSE_S)
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:  # and they clean up while the bus is still there
            await asyncio.wait(self.server_state.tasks, timeout=_CLOSE_S)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(settings: EdgeSettings) -> socket.socket:
    """Return the listening socket. Raises StartError that names the address when it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit these
            timeout_s = min(max(1, round(settings.send_timeout_s)), _LONGEST_S)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_s * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, timeout_s // 2))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, timeout_s // 6))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEP_ALIVE_PROBES)
        with names_setting("host, port", f"{settings.host}:{settings.port}"):
            listener.bind((settings.host, settings.port))
        listener.listen(2048)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve_http(
    app: ASGIApp,
    settings: EdgeSettings,
    stop: anyio.Event,
    room: Room,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then open connections are closed.

    From `stop` on an edge that shares its port takes no new connection: a sibling would serve it, we only refuse.
    """
    listener = listen(settings)
    connection: Any = partial(
        Connection,
        head_timeout_s=settings.head_timeout_s,
        max_head_bytes=settings.max_head_bytes,
        room=room,
    )
    config = uvicorn.Config(
        app,
        http=connection,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_IDLE_S,
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.listening.wait()
        task_status.started()
        try:
            await stop.wait()
            if settings.reuse_port:
                server.stop_accepting(listener)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await server.shutdown([listener])

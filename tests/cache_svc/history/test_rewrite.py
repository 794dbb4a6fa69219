"""Deletions ask the server to rewrite its append-only file, again where a rewrite that began before is under way."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis.exceptions import ResponseError

from cache_svc.history.rewrite import Rewriter

pytestmark = pytest.mark.anyio


class Server:
    """Answers each call with the next of these, at last with OK; a real one cannot be caught in a rewrite for sure."""

    def __init__(self, *errors: str) -> None:
        self.num_asked = 0
        self._errors = list(errors)

    async def call(self, *command: str) -> bytes:
        assert command == ("BGREWRITEAOF",)
        self.num_asked += 1
        if self._errors:
            raise ResponseError(self._errors.pop(0))
        return b"OK"


class Route:
    def __init__(self, server: Server) -> None:
        self.servers = [server]


async def asked(server: Server) -> int:
    """Delete something once; returns how often the server was asked."""
    route: Any = Route(server)
    rewriter = Rewriter(route, 0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewriter.run)
        rewriter.ask()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return server.num_asked


async def test_a_rewrite_that_began_before_the_deletion_is_followed_by_another() -> None:
    busy = "ERR Background append only file rewriting already in progress"
    assert await asked(Server(busy, busy)) == 3


async def test_a_server_that_forbids_it_is_asked_once() -> None:
    assert await asked(Server("NOPERM this user has no permissions to run the 'bgrewriteaof' command")) == 1

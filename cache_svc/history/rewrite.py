"""What was deleted must leave the append-only file too: a deletion asks the server to rewrite it, not too often.

A server that forbids the command (a managed one) or does it on its own terms is left alone.
"""

from __future__ import annotations

import logging

import anyio
from redis.exceptions import RedisError

from wire.bus.route import Route

log = logging.getLogger(__name__)


class Rewriter:
    """Asks for a rewrite after deletions: at most once in `every_s` seconds, and a last time when the desk leaves."""

    def __init__(self, route: Route, every_s: float) -> None:
        self._route = route
        self._every_s = every_s
        self._wanted = anyio.Event()
        self.num_rewrites = 0

    def ask(self) -> None:
        """Note that something was deleted."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask the server for what is wanted, until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                await self._rewrite()
                await anyio.sleep(self._every_s)
        finally:
            if self._wanted.is_set():
                with anyio.move_on_after(2.0, shield=True):
                    await self._rewrite()

    async def _rewrite(self) -> None:
        for server in self._route.servers:
            try:
                await server.call("BGREWRITEAOF")
                self.num_rewrites += 1
            except RedisError as error:  # forbidden, or switched off: the server's own rules hold
                log.info("the server does not rewrite its append-only file now: %s", error)
                if "in progress" in str(error):  # it began before the deletion, and may keep what was deleted
                    self.ask()

"""Calls that must not be lost, repeated until the bus is back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from wire.errors import UnavailableError

log = logging.getLogger(__name__)

_RETRY_S = 1.0


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Await a call; while the bus is away, again and again."""
    while True:
        try:
            await call()
            return
        except UnavailableError as error:
            log.warning("the bus is away: %r", error)
            await anyio.sleep(_RETRY_S)

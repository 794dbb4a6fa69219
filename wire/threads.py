"""Work in a thread, whose errors keep nothing alive once they have been handled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack, cast

import anyio
import anyio.to_thread

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


async def in_thread(work: Callable[[Unpack[Ts]], R], *args: *Ts, limiter: anyio.CapacityLimiter | None = None) -> R:
    """Do some work in a thread of anyio's and return its result. Raises what it raises.

    An exception that a future brings lies in a circle with it, and all that the work knew, texts and ids, stays until
    the garbage collector comes. So what is raised comes beside the future, and nothing but its way up holds it.
    """
    failed: list[Exception] = []
    result = await anyio.to_thread.run_sync(_tried, failed, work, args, limiter=limiter)
    if failed:
        raise failed.pop()
    return cast("R", result)


def _tried(failed: list[Exception], work: Callable[[Unpack[Ts]], R], args: tuple[*Ts]) -> R | None:
    try:
        return work(*args)
    except Exception as error:
        failed.append(error)
        return None

"""A process that stays awake for a while: its loop turns, and then it sleeps again."""

from __future__ import annotations

import itertools

import anyio
import anyio.lowlevel
import pytest

from wire.awake import Awake

pytestmark = pytest.mark.anyio


async def turns(awake_s: float, *, stays: int) -> int:
    """How often the loop asks for the time, which passes by a second each time."""
    asked = itertools.count()
    awake = Awake(awake_s, clock=lambda: float(next(asked)))
    for _ in range(stays):
        awake.stay()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    return next(asked)


async def test_the_loop_turns_for_so_long_and_then_sleeps() -> None:
    assert await turns(10.0, stays=1) == 11


async def test_who_comes_meanwhile_makes_it_longer_and_adds_no_second_turning() -> None:
    assert await turns(10.0, stays=3) == 14


async def test_without_a_time_it_never_stays_awake() -> None:
    assert await turns(0.0, stays=3) == 0

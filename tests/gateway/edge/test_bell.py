"""The bell: who is woken by news, and who deals with them in a call."""

from __future__ import annotations

import anyio
import pytest

from gateway.edge.bell import Bell

pytestmark = pytest.mark.anyio


class Waiter:
    """A task that waits for one ring."""

    def __init__(self, bell: Bell) -> None:
        self.bell = bell
        self.woken = False
        self.error: Exception | None = None

    async def wait(self) -> None:
        try:
            await self.bell.next_ring()
        except ValueError as error:
            self.error = error
        self.woken = True


async def test_news_that_a_call_deals_with_wake_nobody_and_are_told_once_a_turn() -> None:
    bell, calls = Bell(), 0
    waiter = Waiter(bell)

    def at_once() -> bool:
        nonlocal calls
        calls += 1
        return calls < 2

    bell.at_once = at_once
    bell.ring()  # nobody waits: it is looked at by who comes to wait
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        await anyio.wait_all_tasks_blocked()
        bell.ring()
        bell.ring()
        await anyio.wait_all_tasks_blocked()
        assert (calls, waiter.woken) == (1, False)
        bell.ring()
    assert (calls, waiter.woken) == (2, True)


async def test_a_call_that_fails_fails_in_the_task_that_waits() -> None:
    bell = Bell()
    waiter = Waiter(bell)

    def at_once() -> bool:
        raise ValueError("broken")

    bell.at_once = at_once
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        await anyio.wait_all_tasks_blocked()
        bell.ring()
    assert str(waiter.error) == "broken"


async def test_a_task_that_was_cancelled_meanwhile_has_nothing_done_for_it() -> None:
    bell = Bell()

    def at_once() -> bool:
        raise AssertionError("nobody waits any more")

    bell.at_once = at_once
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Waiter(bell).wait)
        await anyio.wait_all_tasks_blocked()
        bell.ring()
        tasks.cancel_scope.cancel()

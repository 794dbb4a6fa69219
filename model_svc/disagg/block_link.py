"""The service's hold on the engine's blocks: orders with tickets, and the slots of staging memory they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from model_svc.disagg.orders import BlocksDone, ReadBlocks, WriteBlocks
from model_svc.disagg.staging import NUM_SLOTS, Staging

Send = Callable[[ReadBlocks | WriteBlocks], Awaitable[None]]


class Slots:
    """Slots of the staging memory that nobody uses."""

    def __init__(self, slots: range) -> None:
        self._free = list(slots)
        self._left = anyio.Semaphore(len(slots))

    async def take(self) -> int:
        """Wait for a slot."""
        await self._left.acquire()
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Return a slot."""
        self._free.append(slot)
        self._left.release()


class _Order:
    """An order that the engine has not answered. Whoever waits may be gone by then; the slot is busy until then."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.num_blocks = 0
        self.when_abandoned: Callable[[], None] | None = None

    def release(self, slots: Slots, slot: int) -> None:
        """Give a slot back: at once, or when the engine is done with it."""
        if self.done.is_set():
            slots.give_back(slot)
        else:
            self.when_abandoned = lambda: slots.give_back(slot)


class BlockLink:
    """Has the engine copy blocks. `staging` may be used as far as a slot is held."""

    def __init__(self, send: Send, staging: Staging) -> None:
        self.staging = staging
        self.for_reading, self.for_writing = Slots(range(NUM_SLOTS // 2)), Slots(range(NUM_SLOTS // 2, NUM_SLOTS))
        self._send = send
        self._orders: dict[int, _Order] = {}
        self._num_orders = 0

    def answered(self, done: BlocksDone) -> None:
        """Take the engine's answer."""
        order = self._orders.pop(done.ticket)
        order.num_blocks = done.num_blocks
        order.done.set()
        if order.when_abandoned is not None:
            order.when_abandoned()

    @asynccontextmanager
    async def read(self, names: bytes, num_names: int) -> AsyncIterator[tuple[int, memoryview]]:
        """Yield how many leading blocks are cached, and their bytes."""
        slot = await self.for_reading.take()
        ticket, order = self._new_order()
        try:
            await self._send(ReadBlocks(ticket=ticket, slot=slot, names=names))
            await order.done.wait()
            assert order.num_blocks <= num_names, "more blocks than were asked for"
            yield order.num_blocks, self.staging.blocks(slot, order.num_blocks)
        finally:
            order.release(self.for_reading, slot)

    async def write(self, slot: int, names: bytes) -> int:
        """Have the engine take what lies in a slot `for_writing`, and give that back.

        Returns how many blocks are cached now.
        """
        ticket, order = self._new_order()
        try:
            await self._send(WriteBlocks(ticket=ticket, slot=slot, names=names))
            await order.done.wait()
            return order.num_blocks
        finally:
            order.release(self.for_writing, slot)

    def _new_order(self) -> tuple[int, _Order]:
        self._num_orders += 1
        order = self._orders[self._num_orders] = _Order()
        return self._num_orders, order

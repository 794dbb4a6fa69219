"""The service's hold on the engine's blocks: orders with tickets, and the slots of staging memory they need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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

    @property
    def any_free(self) -> bool:
        """Whether `take` returns at once."""
        return self._left.value > 0

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


class Reading:
    """An order to read, and the slot that it fills. Whoever made it releases it, whatever comes."""

    def __init__(self, staging: Staging, slots: Slots, slot: int, order: _Order) -> None:
        self._staging = staging
        self._slots = slots
        self._slot = slot
        self._order = order

    async def done(self) -> tuple[int, memoryview]:
        """Wait for the engine; returns how many leading blocks are cached, and their bytes."""
        await self._order.done.wait()
        return self._order.num_blocks, self._staging.blocks(self._slot, self._order.num_blocks)

    def release(self) -> None:
        """Give the slot back."""
        self._order.release(self._slots, self._slot)


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

    async def read(self, names: bytes) -> Reading:
        """Order blocks of as many names as a slot has room for; waits for a slot, not for the engine."""
        slot = await self.for_reading.take()
        ticket, order = self._new_order()
        reading = Reading(self.staging, self.for_reading, slot, order)
        try:
            await self._send(ReadBlocks(ticket=ticket, slot=slot, names=names))
        except BaseException:
            reading.release()
            raise
        return reading

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

"""Reads one stream as one member of a group and sees to it that no entry is left behind.

Three ways lead to an entry: it is new; it was delivered to us in a reply that got lost; its consumer fell silent (the
last two: `wire.bus.strays`). A group or stream that somebody deleted is made again. Entries without payload (trimmed by
hand) are acknowledged and counted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import anyio
import msgspec
from redis.exceptions import ResponseError

from wire import codec
from wire.bus.delivery import Delivery
from wire.bus.endings import Endings
from wire.bus.fields import fields_of
from wire.bus.options import MAX_DELIVERIES, SILENT_CONSUMER_TTL_S
from wire.bus.route import PASSING
from wire.bus.scripts import KEEP, LEAVE, SWEEP
from wire.bus.strays import Entry, Strays
from wire.errors import OverloadedError, UnavailableError

log = logging.getLogger(__name__)

_MALFORMED = (KeyError, ValueError, msgspec.MsgspecError)


class Consumer:
    """One named member of a consumer group. `claims`: take over the entries of members that fell silent."""

    def __init__(self, bus: Endings, stream: str, *, group: str, name: str, claims: bool = True) -> None:
        self.stream, self.group, self.name = stream, group, name
        self._bus = bus
        self._claims = claims
        self._open: set[str] = set()
        self._strays = Strays(bus, stream, group=group, name=name, open_ids=self._open)
        self._found: deque[Entry] = deque()  # read, and not yet sorted out
        self._next_claim = self._next_keep = self._next_sweep = 0.0
        self._delay_s = 0.0

    @property
    def open_ids(self) -> frozenset[str]:
        """Entries handed out and not yet handed on, finished, failed or released."""
        return frozenset(self._open)

    async def read(self, count: int) -> list[Delivery]:
        """Return up to `count` deliveries, waiting until there is one."""
        while True:
            try:
                deliveries = await self._find(count)
            except (*PASSING, UnavailableError, OverloadedError) as error:
                await self._back_off(error)
            else:
                self._delay_s = 0.0
                if deliveries:
                    return deliveries

    @property
    def may_receive(self) -> bool:
        """Whether entries may come with others' replies now; see `Strays`."""
        return self._strays.may_receive

    def receiving(self) -> AbstractContextManager[None]:
        """Count a script that may deliver to us, until its reply has been worked off, or lost."""
        return self._strays.receiving()

    def look_again(self) -> None:
        """Look soon for entries that are ours by the group's books and that we never saw."""
        self._strays.look_again()

    def receive(self, entry_id: bytes, fields: list[bytes], record: dict[str, Any] | None) -> Delivery | None:
        """Take an entry that came with the reply to somebody's script; None if it is better looked at in a read."""
        try:
            return self._delivery(entry_id.decode(), fields, 1, record)
        except _MALFORMED:
            return None

    async def keep_alive(self) -> None:
        """Tell the group that we still work on what we hold, so that nobody claims it."""
        self._next_keep = anyio.current_time() + self._bus.options.claim_idle_s / 3
        await self._set_idle((*self._open, *(entry_id.decode() for entry_id, *_ in self._found)), 0.0)

    async def release(self, delivery: Delivery, *, delay_s: float) -> None:
        """Give an entry back: it is claimed again, by anybody, after about `delay_s`."""
        delivery.close()
        await self._set_idle((delivery.entry_id,), max(self._bus.options.claim_idle_s - delay_s, 0.0))
        self._next_claim = min(self._next_claim, anyio.current_time() + delay_s)

    async def leave(self) -> None:
        """Give everything back at once and leave the group; a replica's stream keeps what it holds.

        Tried once: whoever leaves may not have the time to wait for a bus that is away.
        """
        await self._strays.none_receiving()
        self._open.clear()
        self._found.clear()
        if self._claims:
            idle_ms = int(self._bus.options.claim_idle_s * 1000)
            try:
                await self._bus.route.run(LEAVE, (self.stream,), self.group, self.name, idle_ms, repeat=False)
            except PASSING as error:
                log.warning("left %s without a word; what it held will be claimed: %s", self.stream, error)
            except ResponseError as error:
                if not _is_gone(error):
                    raise

    async def _find(self, count: int) -> list[Delivery]:
        try:
            if not self._found:
                self._found.extend(await self._look(count))
            return await self._sort_out()
        except ResponseError as error:
            await self._make_group_again(error)
            return []

    async def _set_idle(self, ids: Iterable[str], idle_s: float) -> None:
        if ids := tuple(ids):
            try:
                await self._bus.route.run(KEEP, (self.stream,), self.group, self.name, int(idle_s * 1000), *ids)
            except ResponseError as error:
                await self._make_group_again(error)

    async def _look(self, count: int) -> list[Entry]:
        if found := await self._strays.of_ours(count):
            return found
        if not self._claims:
            return await self._new(count, self._bus.options.block_s)
        now = anyio.current_time()
        if now >= self._next_keep:
            await self.keep_alive()
        if now >= self._next_sweep:
            self._next_sweep = now + SILENT_CONSUMER_TTL_S
            await self._bus.route.run(SWEEP, (self.stream,), self.group, int(SILENT_CONSUMER_TTL_S * 1000))
        if now >= self._next_claim:
            if found := await self._strays.of_silent_ones(count):
                return found
            self._next_claim = now + min(self._bus.options.claim_idle_s / 2, 1.0)
        return await self._new(count, min(self._next_claim - now, self._bus.options.block_s))

    async def _new(self, count: int, block_s: float) -> list[Entry]:
        block_ms = max(1, int(block_s * 1000))  # 0 would wait for ever
        command = ("XREADGROUP", "GROUP", self.group, self.name, "COUNT", count, "BLOCK", block_ms)
        with self._strays.reply_awaited():
            reply = await self._bus.route.once(self.stream, *command, "STREAMS", self.stream, ">", blocking=True)
        return [(entry_id, fields, 1) for entry_id, fields in reply[0][1]] if reply else []

    async def _sort_out(self) -> list[Delivery]:
        """Return what may be handed out. What the bus has no room for now stays, and does not count as delivered."""
        deliveries: list[Delivery] = []
        try:
            while self._found:
                if (delivery := await self._unwrap(*self._found[0])) is not None:
                    deliveries.append(delivery)
                self._found.popleft()
        except Exception:
            if not deliveries:
                raise
        except BaseException:
            for delivery in deliveries:
                delivery.close()
            self._found.clear()
            self._strays.missed_reply = True  # so that they are found again
            raise
        return deliveries

    async def _unwrap(self, raw_id: bytes, fields: list[bytes] | None, times: int) -> Delivery | None:
        entry_id = raw_id.decode()
        if fields is None:
            await self._bus.route.call(self.stream, "XACK", self.stream, self.group, entry_id)
            self._bus.counts.num_lost += 1
            log.error("entry %s on %s has no payload any more; acknowledged as lost", entry_id, self.stream)
            return None
        try:
            delivery = self._delivery(entry_id, fields, times)
        except _MALFORMED as error:
            await self._bus.set_aside(self.stream, self.group, entry_id, reason="malformed")
            self._bus.counts.num_malformed += 1
            log.error("malformed entry %s on %s set aside: %r", entry_id, self.stream, error)
            return None
        if times > MAX_DELIVERIES and self._claims:
            delivery.close()
            await self._bus.dead_letter(delivery, reason="its consumers died of it")
            return None
        return delivery

    def _delivery(
        self, entry_id: str, fields: list[bytes], times: int, record: dict[str, Any] | None = None
    ) -> Delivery:
        values = fields_of(fields)
        return Delivery(
            stream=self.stream,
            group=self.group,
            consumer=self.name,
            entry_id=entry_id,
            message=codec.decode_message(values[b"m"]),
            published_at=float(values.get(b"t", 0.0)),
            times_delivered=times,
            open_ids=self._open,
            record=record,
        )

    async def _make_group_again(self, error: ResponseError) -> None:
        if not _is_gone(error):
            raise error
        self._strays.missed_reply = False
        self._found.clear()  # the new group will be given them
        command = ("XGROUP", "CREATE", self.stream, self.group, "0", "MKSTREAM")
        try:
            await self._bus.route.call(self.stream, *command)
        except ResponseError as known:
            if not str(known).startswith("BUSYGROUP"):
                raise

    async def _back_off(self, error: Exception) -> None:
        self._delay_s = min(max(self._delay_s * 2, 0.02), 1.0)
        log.warning("%s could not be read, again in %.2f s: %s", self.stream, self._delay_s, error)
        await anyio.sleep(self._delay_s)
        await self._bus.route.learn_again()


def _is_gone(error: ResponseError) -> bool:
    # UNBLOCKED: the stream was deleted while we waited on it. NOGROUP: it, or the group alone, is not there. SWEEP asks
    # about a stream first and hears "no such key".
    return str(error).startswith(("NOGROUP", "UNBLOCKED", "ERR no such key", "no such key"))

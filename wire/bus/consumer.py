"""Reads one stream as one member of a group and sees to it that no entry is left behind.

Three ways lead to an entry: it is new; it was delivered to us in a reply that got lost; its consumer fell silent. A
group or stream that somebody deleted is made again. Entries without payload (trimmed by hand) are acknowledged and
counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from redis.exceptions import ResponseError

from wire import codec
from wire.bus.delivery import Delivery
from wire.bus.options import MAX_DELIVERIES
from wire.bus.route import PASSING
from wire.bus.scripts import CLAIM, KEEP
from wire.errors import UnavailableError

if TYPE_CHECKING:
    from wire.bus.bus import Bus

log = logging.getLogger(__name__)

Entry = tuple[bytes, list[bytes] | None, int]  # id, field and value in turn (None: trimmed away), times delivered

_PAGE = 64


class Consumer:
    """One named member of a consumer group. `claims`: take over the entries of members that fell silent."""

    def __init__(self, bus: Bus, stream: str, *, group: str, name: str, claims: bool = True) -> None:
        self.stream, self.group, self.name = stream, group, name
        self._bus = bus
        self._claims = claims
        self._open: set[str] = set()
        self._missed_reply = True  # a consumer of this name may have lived before us
        self._next_claim = 0.0
        self._next_keep = 0.0
        self._delay = 0.0

    @property
    def open_ids(self) -> frozenset[str]:
        """Entries handed out and not yet handed on, finished, failed or released."""
        return frozenset(self._open)

    async def read(self, count: int) -> list[Delivery]:
        """Return up to `count` deliveries, waiting until there is one."""
        while True:
            try:
                found = await self._look(count)
            except ResponseError as error:
                await self._make_group_again(error)
                continue
            except (*PASSING, UnavailableError) as error:
                await self._back_off(error)
                continue
            self._delay = 0.0
            deliveries = await self._sort_out(found)
            if deliveries:
                return deliveries

    async def keep_alive(self) -> None:
        """Tell the group that we still work on what we hold, so that nobody claims it."""
        await self._set_idle(self._open, 0.0)

    async def release(self, delivery: Delivery, *, delay_s: float) -> None:
        """Give an entry back: it is claimed again, by anybody, after about `delay_s`."""
        delivery.close()
        await self._set_idle((delivery.entry_id,), max(self._bus.options.claim_idle_s - delay_s, 0.0))
        self._next_claim = min(self._next_claim, anyio.current_time() + delay_s)

    async def release_all(self) -> None:
        """Give everything back at once: we are leaving."""
        ids, self._open = self._open, set()
        await self._set_idle(ids, self._bus.options.claim_idle_s)

    async def _set_idle(self, ids: Iterable[str], idle_s: float) -> None:
        if ids := tuple(ids):
            try:
                await self._bus.route.run(KEEP, (self.stream,), self.group, self.name, int(idle_s * 1000), *ids)
            except ResponseError as error:
                await self._make_group_again(error)

    async def _look(self, count: int) -> list[Entry]:
        now = anyio.current_time()
        if self._missed_reply:
            if found := await self._own_pending(count):
                return found
            self._missed_reply = False
        if self._claims and now >= self._next_keep:
            self._next_keep = now + self._bus.options.claim_idle_s / 3
            await self.keep_alive()
        if self._claims and now >= self._next_claim:
            if found := await self._claim(count):
                return found
            self._next_claim = now + min(self._bus.options.claim_idle_s / 2, 1.0)
        return await self._new(count)

    async def _new(self, count: int) -> list[Entry]:
        block_ms = int(self._bus.options.block_s * 1000)
        if self._claims:
            until_claim = int((self._next_claim - anyio.current_time()) * 1000)
            block_ms = max(1, min(block_ms, until_claim))
        command = ("XREADGROUP", "GROUP", self.group, self.name, "COUNT", count, "BLOCK", block_ms)
        self._missed_reply = True
        reply = await self._bus.route.once(self.stream, *command, "STREAMS", self.stream, ">", blocking=True)
        self._missed_reply = False
        return [(entry_id, fields, 1) for entry_id, fields in reply[0][1]] if reply else []

    async def _own_pending(self, count: int) -> list[Entry]:
        """Entries that are ours by the group's books although we never saw them."""
        after = "-"
        while True:
            page = await self._bus.route.call(
                self.stream, "XPENDING", self.stream, self.group, after, "+", _PAGE, self.name
            )
            times = {row[0]: row[3] for row in page if row[0].decode() not in self._open}
            if times:
                ids = list(times)[:count]
                return await self._take_over(ids, times)
            if len(page) < _PAGE:
                return []
            after = "(" + page[-1][0].decode()

    async def _take_over(self, ids: list[bytes], times: dict[bytes, int]) -> list[Entry]:
        reply = await self._bus.route.call(self.stream, "XCLAIM", self.stream, self.group, self.name, 0, *ids)
        found = {entry[0]: entry[1] for entry in reply if entry}
        return [(entry_id, found.get(entry_id), times[entry_id] + 1) for entry_id in ids]

    async def _claim(self, count: int) -> list[Entry]:
        cursor: bytes = b"0-0"
        while True:
            idle_ms = int(self._bus.options.claim_idle_s * 1000)
            cursor, claimed, gone = await self._bus.route.run(
                CLAIM, (self.stream,), self.group, self.name, idle_ms, cursor, count
            )
            found: list[Entry] = [(entry_id, fields, times) for entry_id, fields, times in claimed]
            found += [(entry_id, None, 0) for entry_id in gone]
            if found or cursor == b"0-0":
                return found

    async def _sort_out(self, found: list[Entry]) -> list[Delivery]:
        deliveries = []
        for entry_id, fields, times in found:
            if fields is None:
                await self._count_lost(entry_id)
            elif (delivery := await self._open_entry(entry_id.decode(), fields, times)) is not None:
                deliveries.append(delivery)
        return deliveries

    async def _open_entry(self, entry_id: str, fields: list[bytes], times: int) -> Delivery | None:
        values: dict[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
        try:
            message = codec.decode_message(values[b"m"])
            published_at = float(values.get(b"t", 0.0))
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            self._bus.counts.num_malformed += 1
            log.error("malformed entry %s on %s set aside: %s", entry_id, self.stream, error)
            await self._bus.set_aside(self.stream, self.group, entry_id, reason="malformed")
            return None
        delivery = Delivery(
            stream=self.stream,
            group=self.group,
            consumer=self.name,
            entry_id=entry_id,
            message=message,
            published_at=published_at,
            times_delivered=times,
            open_ids=self._open,
        )
        if times > MAX_DELIVERIES and self._claims:
            await self._bus.dead_letter(delivery, reason="delivered too often")
            return None
        return delivery

    async def _count_lost(self, entry_id: bytes) -> None:
        self._bus.counts.num_lost += 1
        log.error("entry %s on %s has no payload any more; acknowledged as lost", entry_id.decode(), self.stream)
        await self._bus.route.call(self.stream, "XACK", self.stream, self.group, entry_id)

    async def _make_group_again(self, error: ResponseError) -> None:
        # UNBLOCKED: the stream was deleted while we waited on it; NOGROUP: it, or the group alone, is not there.
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise error
        self._missed_reply = False
        try:
            await self._bus.route.call(self.stream, "XGROUP", "CREATE", self.stream, self.group, "0", "MKSTREAM")
        except ResponseError as known:
            if not str(known).startswith("BUSYGROUP"):
                raise

    async def _back_off(self, error: Any) -> None:
        self._delay = min(max(self._delay * 2, 0.02), 1.0)
        log.warning("bus lost while reading %s, again in %.2f s: %r", self.stream, self._delay, error)
        await anyio.sleep(self._delay)

"""Finds entries of a group that no reader has in hand, by the group's books.

Ours: they were delivered in a reply that got lost. Others': their consumer fell silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager

import anyio

from wire.bus.core import Core
from wire.bus.scripts import CLAIM

Entry = tuple[bytes, list[bytes] | None, int]
"""Id, field and value in turn (None: trimmed away), times delivered."""

_PAGE = 64


class Strays:
    """What one consumer has to look for. `open_ids` are the entries that it has in hand."""

    def __init__(self, bus: Core, stream: str, *, group: str, name: str, open_ids: Set[str]) -> None:
        self.missed_reply = True  # a consumer of this name may have lived before us
        self._bus = bus
        self._stream, self._group, self._name = stream, group, name
        self._open = open_ids
        self._missed_gift = self._is_searching = False
        self._num_receiving = 0
        self._received = anyio.Event()

    @property
    def may_receive(self) -> bool:
        """Whether entries may come with others' replies now: not while we look for those whose reply was lost."""
        return not self._is_searching

    @contextmanager
    def reply_awaited(self) -> Iterator[None]:
        """Count a reply as lost that brings entries, until the block has ended well: then we hold it."""
        self.missed_reply = True
        yield
        self.missed_reply = False

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Count a script that may deliver to us, until its reply has been worked off, or lost."""
        self._num_receiving += 1
        try:
            yield
        except BaseException:
            self.look_again()
            raise
        finally:
            self._num_receiving -= 1
            if not self._num_receiving:
                self._received.set()

    def look_again(self) -> None:
        """Look soon for entries that are ours by the group's books and that we never saw."""
        self._missed_gift = True

    async def none_receiving(self) -> None:
        """Wait until no script is under way that may deliver to us."""
        while self._num_receiving:
            self._received = anyio.Event()
            await self._received.wait()

    async def of_ours(self, count: int) -> list[Entry]:
        """Find what was delivered to us in replies that got lost, if any was."""
        if self.missed_reply or self._missed_gift:
            if found := await self._search(count):
                return found
            self.missed_reply = False
        return []

    async def of_silent_ones(self, count: int) -> list[Entry]:
        """Take over what consumers hold that fell silent."""
        cursor: bytes = b"0-0"
        idle_ms = int(self._bus.options.claim_idle_s * 1000)
        while True:
            args = (self._group, self._name, idle_ms, cursor, count)
            with self.reply_awaited():
                cursor, claimed, gone = await self._bus.route.run(CLAIM, (self._stream,), *args, repeat=False)
            found: list[Entry] = [(row[0], row[1], row[2]) for row in claimed if row[0].decode() not in self._open]
            found += [(entry_id, None, 0) for entry_id in gone]
            if found or cursor == b"0-0":
                return found

    async def _search(self, count: int) -> list[Entry]:
        """Look through the group's books. What is on its way to us would look the same as what got lost."""
        self._is_searching = True
        try:
            await self.none_receiving()
            self._missed_gift = False
            found = await self._own_pending(count)
            self._missed_gift = self._missed_gift or bool(found)  # there may be more
            return found
        except BaseException:
            self._missed_gift = True
            raise
        finally:
            self._is_searching = False

    async def _own_pending(self, count: int) -> list[Entry]:
        """Entries that are ours by the group's books although we never saw them."""
        after = "-"
        while True:
            command = ("XPENDING", self._stream, self._group, after, "+", _PAGE, self._name)
            page = await self._bus.route.call(self._stream, *command)
            times = {row[0]: row[3] for row in page if row[0].decode() not in self._open}
            if times:
                return await self._take_over(list(times)[:count], times)
            if len(page) < _PAGE:
                return []
            after = "(" + page[-1][0].decode()

    async def _take_over(self, ids: list[bytes], times: dict[bytes, int]) -> list[Entry]:
        command = ("XCLAIM", self._stream, self._group, self._name, 0)
        reply = await self._bus.route.call(self._stream, *command, *ids)
        found = {entry[0]: entry[1] for entry in reply if entry}
        return [(entry_id, found.get(entry_id), times[entry_id] + 1) for entry_id in ids]

"""Desks of one process hand jobs to one another in one round trip: adding the entry and reading it are one script.

Without this, a hop within a process costs three: the hand-off, the reply to the next desk's blocking read, and the
reading of the record. The entry is delivered to the next desk's consumer by the group's books exactly as if it had read
it, so whatever holds for a delivery holds here. A reply that gets lost on the way is found by that consumer's look
at its own pending entries, as after a lost read.

A desk that need not wait for anything does not even get the entry: its neighbour lets it do its part, and hands the job
past it. One that needs nothing but the request can do its part before there is any entry (see `wire.step`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from anyio.lowlevel import RunVar

from wire.bus.consumer import Consumer
from wire.bus.delivery import Delivery
from wire.bus.fields import decoded
from wire.bus.line import Arg
from wire.messages import Job

DoAtOnce = Callable[[Job, dict[str, Any]], Any]
"""Does a desk's part of a job, given the record fields that it wants; None: it has to wait for something."""

DoAhead = Callable[[Job, Mapping[str, Any]], Awaitable[Any]]
"""Does a desk's part of a job that is not on the bus yet; None: it has to come there. Raises what ends the job."""

NOBODY: tuple[Arg, ...] = ("", "", 0)
"""What a script is told when no desk of this process reads the next stream, or none has room."""


class Neighbour:
    """A desk of this process that may be handed an entry. `accept` gets it and must not wait.

    `do_at_once` does its part without any entry, for jobs with the fields that it `needs` (None: all `fields`);
    `do_ahead` for jobs that nobody has admitted yet.
    """

    def __init__(
        self,
        reader: Consumer,
        fields: Sequence[str],
        *,
        has_room: Callable[[], bool],
        accept: Callable[[Delivery], None],
        needs: Sequence[str] | None = None,
        do_at_once: DoAtOnce | None = None,
        do_ahead: DoAhead | None = None,
    ) -> None:
        self._reader = reader
        self._fields = tuple(fields)
        self._needs = frozenset(self._fields if needs is None else needs)
        self._has_room = has_room
        self._accept = accept
        self.do_at_once = do_at_once
        self.do_ahead = do_ahead
        self.is_open = True

    def is_content_with(self, names: Set[str]) -> bool:
        """Tell whether these record fields are all that the desk needs."""
        return names >= self._needs

    @property
    def has_room(self) -> bool:
        """Whether the desk would take an entry now."""
        return self._reader.may_receive and self._has_room()

    @property
    def words(self) -> tuple[Arg, ...]:
        """Who reads, and which record fields it wants, for the script."""
        return self._reader.group, self._reader.name, len(self._fields), *self._fields

    def asked(self) -> AbstractContextManager[None]:
        """Count a script that may deliver to this desk, from before it is sent until its reply is worked off."""
        return self._reader.receiving()

    def receive(self, reply: Any) -> None:
        """Take what the script delivered. Nothing came although it was asked for: it is looked for."""
        delivery = None
        if isinstance(reply, list):
            record = decoded(self._fields, reply[3]) if len(reply) > 3 else None
            delivery = self._reader.receive(reply[1], reply[2], record)
        if delivery is None:
            self._reader.look_again()
        elif self.is_open:
            self._accept(delivery)
        else:  # it is leaving, and gives back what it holds
            delivery.close()


class Neighbours:
    """The desks of this process on one bus, by stream."""

    def __init__(self) -> None:
        self._by_stream: dict[str, list[Neighbour]] = {}

    def with_room(self, stream: str) -> Neighbour | None:
        """Return a desk that reads the stream and has room."""
        return next((one for one in self._by_stream.get(stream, ()) if one.has_room), None)

    def past(self, stream: str, names: Set[str]) -> DoAtOnce | None:
        """Return what does the part of a desk that a job with these record fields may go past."""
        for one in self._by_stream.get(stream, ()):
            if one.do_at_once is not None and one.is_content_with(names):
                return one.do_at_once
        return None

    def ahead(self, stream: str) -> DoAhead | None:
        """Return what does the part of a desk before a job is admitted to its stream."""
        return next((one.do_ahead for one in self._by_stream.get(stream, ()) if one.do_ahead is not None), None)

    @contextmanager
    def sits(self, stream: str, neighbour: Neighbour) -> Iterator[None]:
        """Let others hand entries to a desk while the block runs."""
        self._by_stream.setdefault(stream, []).append(neighbour)
        try:
            yield
        finally:
            neighbour.is_open = False
            self._by_stream[stream].remove(neighbour)


_all: RunVar[dict[str, Neighbours]] = RunVar("neighbours")


def neighbours_at(url: str) -> Neighbours:
    """Return the desks of this event loop on the bus of this URL."""
    known = _all.get({})
    _all.set(known)
    return known.setdefault(url, Neighbours())

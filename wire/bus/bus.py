"""The message bus: jobs go from desk to desk, everything else to inboxes, over Redis Streams.

A job's envelope is one stream entry at a time, what grows about it is one hash (the record), both in the slot of the
job's partition. An entry stays in its stream until the job has moved on, so a stream holds exactly the open work.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from wire import codec, topics
from wire.bus.consumer import Consumer
from wire.bus.delivery import Delivery, HandOff
from wire.bus.fields import flat, record_of
from wire.bus.line import Arg
from wire.bus.neighbours import NOBODY, Neighbours, neighbours_at
from wire.bus.options import RING_MAXLEN, BusOptions
from wire.bus.placement import Placing
from wire.bus.records import Records
from wire.bus.route import Route
from wire.bus.script import Script
from wire.bus.scripts import ADMIT, HAND_OFF
from wire.errors import OverloadedError, RequestCancelledError
from wire.messages import Job


class Bus(Records, Placing):
    """A process's access to the bus. Open it with `async with Bus.open(url) as bus`.

    Every call survives the loss of a connection: it is repeated with backoff, each being safe to repeat. Raises
    UnavailableError when the server stays away longer than `options.patience_s`.
    """

    def __init__(self, route: Route, options: BusOptions, neighbours: Neighbours) -> None:
        super().__init__(route, options)
        self.neighbours = neighbours

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, options: BusOptions | None = None) -> AsyncIterator[Bus]:
        """Connect to `redis://`, `rediss://`, `unix://` or `redis+cluster://`; a cluster is also found by asking.

        Raises StartError for an address of another kind, UnavailableError when nobody answers there.
        """
        options = options or BusOptions()
        route = Route(url, options)
        try:
            await route.open()
            yield cls(route, options, neighbours_at(url))
        finally:
            await route.aclose()

    async def admit(
        self, job: Job, fields: Mapping[str, msgspec.Struct], *, to: str, ttl_s: float, maxlen: int = RING_MAXLEN
    ) -> bool:
        """Write the job's record and its first entry, once; False if a job of this id was admitted before.

        Raises OverloadedError when the first stream is full.
        """
        head = (self._nonce(), maxlen, int(ttl_s * 1000), time.time(), codec.encode(job))
        outcome = await self._pass_on(to, ADMIT, (record_of(job), to), head, fields)
        if outcome < 0:
            raise OverloadedError("too many requests are waiting", retry_after_s=1.0)
        return bool(outcome)

    async def hand_off(
        self,
        delivery: Delivery,
        job: Job,
        *,
        to: str,
        fields: Mapping[str, msgspec.Struct] | None = None,
        maxlen: int = RING_MAXLEN,
    ) -> HandOff:
        """Move the job to the next stream, in one step with its acknowledgement here and its new record fields.

        A job that was cancelled, has failed or expired ends here: CANCELLED, and its edge has been told. Raises
        OverloadedError when the next stream is full; the job is then still ours, to be failed.
        """
        keys = (delivery.stream, record_of(job), to)
        head = (delivery.group, delivery.entry_id, maxlen, time.time(), codec.encode(job))
        outcome = await self._pass_on(to, HAND_OFF, keys, head, fields or {})
        if outcome == 3:
            raise OverloadedError("the next desk has too much waiting", retry_after_s=1.0)
        if outcome == 2:
            over = RequestCancelledError("the request was cancelled, or its record expired")
            ours = await self._end(job, over, "bus", delivery.stream, delivery.entry_id)
            await self._drop(delivery)
            return HandOff.CANCELLED if ours else HandOff.LOST
        delivery.close()
        return HandOff.DONE if outcome else HandOff.LOST

    async def _pass_on(
        self,
        to: str,
        script: Script,
        keys: tuple[str, ...],
        head: tuple[Arg, ...],
        fields: Mapping[str, msgspec.Struct],
    ) -> int:
        """Run a script that adds an entry; a desk of this process that reads there and has room gets it at once."""
        neighbour = self.neighbours.with_room(to)
        if neighbour is None:
            outcome: int = await self.route.run(script, keys, *head, *NOBODY, *flat(fields))
            return outcome
        with neighbour.asked():
            reply = await self.route.run(script, keys, *head, *neighbour.words, *flat(fields))
            neighbour.receive(reply)
        return int(reply[0] if isinstance(reply, list) else reply)

    def consumer(self, stream: str, *, group: str, name: str) -> Consumer:
        """Return a group member to read with; it claims what silent members left (never of a replica's stream)."""
        return Consumer(self, stream, group=group, name=name, claims=not topics.is_replica(stream))

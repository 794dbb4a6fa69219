"""Control of running requests: the client says that there has been enough thinking.

A request is known by the id of its answer (`chatcmpl-...`, `resp_...`, ...) and by the X-Request-Id of its reply, the
client's own if it sent one; several requests with one X-Request-Id are all meant. Only its own tenant reaches it. A
`resp_...` is found from every edge, by its record; other ids at the edge that answers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gateway.edge.generation import Generation
from gateway.edge.identity import partition_of, root_of
from gateway.edge.jobs import CONTROL_MAXLEN
from wire import topics
from wire.bus import Bus
from wire.errors import NotFoundError
from wire.messages import Closed, EndReasoning, Placement, Request


class Controls:
    """The running requests of this edge by what their clients call them."""

    def __init__(self, bus: Bus, partitions: int) -> None:
        self._bus = bus
        self._partitions = partitions
        self._named: dict[str, list[Generation]] = {}

    @contextmanager
    def known_as(self, names: Iterable[str], generations: Iterable[Generation]) -> Iterator[None]:
        """Keep requests under these names while the block answers them."""
        pairs = [(name, generation) for name in set(names) if name for generation in generations]
        for name, generation in pairs:
            self._named.setdefault(name, []).append(generation)
        try:
            yield
        finally:
            for name, generation in pairs:
                self._named[name].remove(generation)
                if not self._named[name]:
                    del self._named[name]

    async def end_reasoning(self, name: str, tenant: str) -> None:
        """Have the open think blocks of a request closed at its next step. Raises NotFoundError."""
        found = [one for one in self._named.get(name, ()) if one.request.tenant == tenant]
        for one in found:
            if not one.ended:
                await self._end(one.job.partition, one.job.request_id, one.request.sampling.n, one.flight.replica_id)
        if not found:
            await self._end_elsewhere(name, tenant)

    async def _end_elsewhere(self, name: str, tenant: str) -> None:
        """End the thinking of a request that another edge answers."""
        partition = partition_of(root_of(name), self._partitions)
        record = await self._bus.record(partition, name, "request") if name.startswith("resp_") else {}
        request: Request | None = record.get("request")
        if request is None or request.tenant != tenant:
            raise NotFoundError(f"No request {name[:80]!r} is running here.", param="id")
        await self._end(partition, name, request.sampling.n, None)

    async def _end(self, partition: int, request_id: str, num_choices: int, replica_id: str | None) -> None:
        if replica_id is None and not await self._placement(partition, request_id):
            # Not placed yet: whoever gets it reads here that thinking is over before its first token.
            await self._bus.update_record(
                partition, request_id, {"closed": Closed(at=dict.fromkeys(range(num_choices), (0,)))}
            )
        replica_id = await self._placement(partition, request_id) or replica_id
        if replica_id:
            await self._bus.send(topics.control(replica_id), EndReasoning(request_id=request_id), maxlen=CONTROL_MAXLEN)

    async def _placement(self, partition: int, request_id: str) -> str:
        record = await self._bus.record(partition, request_id, "placement")
        placement: Placement | None = record.get("placement")
        return placement.replica_id if placement is not None else ""

"""The in-flight table: who gets the tokens and failures that come through the inbox, and whose deadline passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import time

import anyio

from gateway.edge.bell import Bell
from gateway.edge.flight import Flight, Gap
from wire.errors import DeadlineExceededError, HeadraceError
from wire.messages import Checkpoint, Failure, TokenBatch

_LOOK_S = 0.1  # how late a passed deadline may be noticed


class InFlight:
    """All running requests of this edge, by id. What comes for an unknown id (a late token) is dropped."""

    def __init__(self, max_pending_tokens: int) -> None:
        self._flights: dict[str, Flight] = {}
        self._looks_at = 0.0  # for deadlines
        self._sooner = anyio.Event()  # a request has come whose deadline is before that
        self._max_pending_tokens = max_pending_tokens

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that wait for slow clients, over all requests."""
        return sum(flight.num_pending_tokens for flight in self._flights.values())

    @contextmanager
    def open(self, request_id: str, *, deadline: float, bell: Bell | None = None) -> Iterator[Flight]:
        """Keep an entry for a request while the block runs; an older entry of the same request gives up.

        `deadline` is Unix time. From here on only what is left counts: clocks are set now and then, by hours even.
        """
        if request_id in self._flights:
            self._flights[request_id].give_up()
        deadline = anyio.current_time() + deadline - time()
        flight = Flight(request_id, deadline=deadline, max_pending_tokens=self._max_pending_tokens, bell=bell)
        self._flights[request_id] = flight
        if deadline < self._looks_at:
            self._sooner.set()
        try:
            yield flight
        finally:
            if self.holds(flight):
                del self._flights[request_id]

    def holds(self, flight: Flight) -> bool:
        """Tell whether a flight is the one that gets the tokens of its request."""
        return self._flights.get(flight.request_id) is flight

    async def watch_deadlines(self) -> None:
        """Fail the requests that are too late, until cancelled: one look at all costs less than a timer a token.

        When the nearest deadline passes: looks now and then would wake an idle process, and a busy one between tokens.
        """
        while True:
            now, nearest = anyio.current_time(), inf
            for flight in list(self._flights.values()):
                if now >= flight.deadline:
                    flight.fail(DeadlineExceededError("The deadline passed before the answer was complete."))
                else:
                    nearest = min(nearest, flight.deadline)
            self._looks_at = max(nearest, now + _LOOK_S)
            self._sooner = anyio.Event()
            with anyio.move_on_after(self._looks_at - now):
                await self._sooner.wait()

    def deliver(self, batch: TokenBatch) -> list[Gap]:
        """Hand out a step's tokens; return the gaps to be asked for."""
        gaps = []
        for chunk in batch.chunks:
            flight = self._flights.get(chunk.request_id)
            gap = flight.offer(chunk, batch.replica_id) if flight is not None else None
            if gap is not None:
                gaps.append(gap)
        return gaps

    def checkpoint(self, request_id: str) -> Checkpoint | None:
        """Return the tokens that are here of a request; None if it is not in flight at this edge."""
        flight = self._flights.get(request_id)
        return flight.checkpoint() if flight is not None else None

    def fail(self, failure: Failure, error: HeadraceError) -> None:
        """Hand out a desk's failure."""
        flight = self._flights.get(failure.request_id)
        if flight is not None:
            flight.fail(error, failure.attempt)

"""The in-flight table: what came for each running request and was not yet taken by its HTTP answer.

Text is never dropped: tokens of an old attempt are fenced off, repeats are cut by their index, a gap is asked for.
What waits for a client that reads slowly is joined; one that falls too far behind all the same loses its own request
(an error), never tokens in the middle, and nobody waits for it: the reader of the inbox only appends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, time

import anyio
import msgspec

from gateway.edge.bell import Bell
from gateway.edge.joining import joined
from gateway.edge.received import Received, checkpoint
from wire.errors import DeadlineExceededError, HeadraceError, OverloadedError, RequestCancelledError
from wire.messages import Checkpoint, Failure, PhaseMark, Resubscribe, TokenBatch, TokenChunk

_ASK_AGAIN_S = 0.5
_JOIN_FROM = 64  # chunks; a client that keeps up has one or two waiting
_LOOK_S = 0.1  # how late a passed deadline may be noticed ...
_LONG_S = 10.0  # ... and how much later if the machine's clock is set meanwhile


class Gap(msgspec.Struct, frozen=True):
    """Tokens of a choice are missing from `from_index` on; `replica_id` has them."""

    request_id: str
    replica_id: str
    choice: int
    from_index: int
    attempt: int = -1

    def question(self, edge: str) -> Resubscribe:
        """Return what asks the replica for them."""
        return Resubscribe(
            request_id=self.request_id,
            edge=edge,
            choice=self.choice,
            from_index=self.from_index,
            attempt=self.attempt,
        )


class Flight:
    """One running request. One task offers (the inbox), one takes (the HTTP answer)."""

    def __init__(self, request_id: str, *, deadline: float, max_pending_tokens: int, bell: Bell | None = None) -> None:
        self.request_id = request_id
        self.deadline = deadline
        self.attempt = 0
        self.replica_id: str | None = None
        self.num_pending_tokens = 0
        self.taken_over = False
        self._max_pending_tokens = max_pending_tokens
        self._pending: list[TokenChunk] = []
        self._join_at = _JOIN_FROM
        self._received: dict[int, Received] = {}
        self._finished: set[int] = set()
        self._ended: set[int] = set()  # here, before the replica knew
        self._asked_at: dict[int, float] = {}
        self._failure: HeadraceError | None = None
        self._bell = bell or Bell()

    @property
    def is_ready(self) -> bool:
        """Tell whether there is something to take, or the failure that ended the request."""
        return bool(self._pending) or self._failure is not None

    def offer(self, chunk: TokenChunk, replica_id: str) -> Gap | None:
        """Add what is new in a chunk; return the gap before it, if there is one."""
        if chunk.attempt < self.attempt or chunk.choice in self._finished or self._failure is not None:
            return None
        self.attempt = chunk.attempt
        self.replica_id = replica_id
        received = self._received.get(chunk.choice)
        expected = received.num_tokens if received is not None else 0
        if chunk.index > expected:
            return self._gap(chunk, replica_id, expected)
        if chunk.index < expected:
            repeated, count = expected - chunk.index, len(chunk.token_ids)
            if repeated >= count and chunk.finish_reason is None and chunk.token_ids:
                return None
            chunk = without_first(chunk, min(repeated, count))
        if received is None:
            received = self._received[chunk.choice] = Received()
        self._append(chunk, received)
        return None

    def fail(self, error: HeadraceError, attempt: int | None = None) -> None:
        """End the request with an error, unless it speaks for an old attempt."""
        if self._failure is None and (attempt is None or attempt >= self.attempt):
            self._failure = error
            self._bell.ring()

    async def take(self) -> list[TokenChunk]:
        """Wait for tokens and return all there are. Raises the failure that ended the request, after the last token."""
        while not self._pending and self._failure is None:
            await self._bell.next_ring()
        if self._pending:
            chunks, self._pending, self.num_pending_tokens = self._pending, [], 0
            self._join_at = _JOIN_FROM
            return chunks
        assert self._failure is not None
        raise self._failure

    def nudge(self, choice: int) -> None:
        """Let who takes look at a choice again, though no token came: text that it holds may leave now."""
        if self._failure is None:
            received = self._received.get(choice)
            index = received.num_tokens if received is not None else 0
            self._pending.append(
                TokenChunk(request_id=self.request_id, attempt=self.attempt, index=index, choice=choice)
            )
            self._bell.ring()

    def put_back(self, chunks: list[TokenChunk]) -> None:
        """Undo a part of `take`: these come first again."""
        self._pending = chunks + self._pending
        self.num_pending_tokens += sum(len(chunk.token_ids) for chunk in chunks)

    def give_up(self) -> None:
        """End here: another answer goes on with this request."""
        self.taken_over = True
        self.fail(RequestCancelledError("Another connection has taken this answer over."))

    @property
    def early_failure(self) -> HeadraceError | None:
        """Return the error of a request that ended before anything could be taken."""
        return None if self._pending else self._failure

    def peek(self) -> list[TokenChunk]:
        """Return what waits, without taking it."""
        return self._pending

    async def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to take, or until the time is up."""
        await self._bell.wait_for(timeout_s, lambda: self.is_ready)
        return self.is_ready

    def checkpoint(self) -> Checkpoint:
        """Return all tokens that came, for another replica to go on from."""
        return checkpoint(self.attempt, self._received, self._ended)

    def end(self, choice: int) -> None:
        """Take note that no more is wanted of a choice, whoever works on it."""
        self._ended.add(choice)

    def _append(self, chunk: TokenChunk, received: Received) -> None:
        received.add(chunk)
        if self._asked_at:
            self._asked_at.pop(chunk.choice, None)
        if chunk.finish_reason is not None:
            self._finished.add(chunk.choice)
        self._pending.append(chunk)
        if len(self._pending) >= self._join_at:
            self._pending = joined(self._pending)
            self._join_at = max(_JOIN_FROM, 2 * len(self._pending))  # so that each token is moved a few times at most
        self.num_pending_tokens += len(chunk.token_ids)
        if self.num_pending_tokens > self._max_pending_tokens:
            self._failure = OverloadedError("The client reads too slowly: its answer does not fit the buffer any more.")
        self._bell.ring()

    def _gap(self, chunk: TokenChunk, replica_id: str, expected: int) -> Gap | None:
        now = monotonic()
        if now - self._asked_at.get(chunk.choice, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            return None
        self._asked_at[chunk.choice] = now
        return Gap(self.request_id, replica_id, chunk.choice, expected, chunk.attempt)


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
        """Keep an entry for a request while the block runs; an older entry of the same request gives up."""
        if request_id in self._flights:
            self._flights[request_id].give_up()
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
            now = time()
            nearest = now + _LONG_S
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


def only_first(chunk: TokenChunk, count: int) -> TokenChunk:
    """Return the first `count` tokens of a chunk that has more; how it ends belongs to the rest."""
    return msgspec.structs.replace(
        chunk,
        token_ids=chunk.token_ids[:count],
        logprobs=chunk.logprobs[:count],
        marks=tuple(mark for mark in chunk.marks if mark.index < count),
        finish_reason=None,
        stop_token=False,
    )


def without_first(chunk: TokenChunk, count: int) -> TokenChunk:
    """Return a chunk without its first `count` tokens, with the phase that holds where the rest begins."""
    if count == 0:
        return chunk
    phase = chunk.phase
    marks = []
    for mark in chunk.marks:
        if (mark.index, mark.offset) <= (count, 0):
            phase = mark.phase
        else:
            marks.append(PhaseMark(mark.index - count, mark.offset, mark.phase))
    return msgspec.structs.replace(
        chunk,
        index=chunk.index + count,
        token_ids=chunk.token_ids[count:],
        logprobs=chunk.logprobs[count:],
        phase=phase,
        marks=tuple(marks),
    )

"""One request in flight: what has arrived for it and has not yet been taken by its HTTP answer.

Text is never dropped: tokens of an old attempt are fenced off, repeats are cut by their index, a gap is asked for.
What waits for a client that reads slowly is joined; one that falls too far behind all the same loses its own request
(an error), never tokens in the middle, and nobody waits for it: the reader of the inbox only appends.
"""

from __future__ import annotations

from time import monotonic

import msgspec

from gateway.edge.bell import Bell
from gateway.edge.chunks import joined, without_first
from gateway.edge.received import Received, checkpoint
from wire.errors import HeadraceError, OverloadedError, RequestCancelledError
from wire.messages import Checkpoint, Resubscribe, TokenChunk

_ASK_AGAIN_S = 0.5
_JOIN_FROM = 64  # chunks; a client that keeps up has one or two waiting


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
        self.bell = bell or Bell()

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
            self.bell.ring()

    async def take(self) -> list[TokenChunk]:
        """Wait for a ring if nothing is here, and return all there is, which may be nothing.

        Raises the failure that ended the request, after the last token.
        """
        if not self._pending and self._failure is None:
            await self.bell.next_ring()
        if not self._pending and self._failure is not None:
            raise self._failure
        return self._take()

    def take_at_once(self, most: int) -> list[TokenChunk] | None:
        """Return what is here: at most so many chunks of answers that go on. None, and nothing is taken: it is else."""
        pending = self._pending
        if not 0 < len(pending) <= most or self._failure is not None:
            return None
        for chunk in pending:
            if chunk.finish_reason is not None or chunk.prompt_logprobs:
                return None
        return self._take()

    def _take(self) -> list[TokenChunk]:
        chunks, self._pending, self.num_pending_tokens = self._pending, [], 0
        self._join_at = _JOIN_FROM
        return chunks

    def nudge(self, choice: int) -> None:
        """Let who takes look at a choice again, though no token came: text that it holds may leave now."""
        if self._failure is None:
            received = self._received.get(choice)
            index = received.num_tokens if received is not None else 0
            self._pending.append(
                TokenChunk(request_id=self.request_id, attempt=self.attempt, index=index, choice=choice)
            )
            self.bell.ring()

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
        await self.bell.wait_for(timeout_s, lambda: self.is_ready)
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
        self.bell.ring()

    def _gap(self, chunk: TokenChunk, replica_id: str, expected: int) -> Gap | None:
        now = monotonic()
        if now - self._asked_at.get(chunk.choice, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            return None
        self._asked_at[chunk.choice] = now
        return Gap(self.request_id, replica_id, chunk.choice, expected, chunk.attempt)

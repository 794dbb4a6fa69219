"""Requests for vectors or scores on the ring: a job goes out, they come back through the edge's inbox."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import anyio
import msgspec

from gateway.edge.jobs import admit, cancel
from wire.bus import Bus
from wire.errors import DeadlineExceededError, HeadraceError
from wire.messages import Embeddings, Failure, Job, Request

logger = logging.getLogger(__name__)

_CANCEL_S = 2.0


class Vectors(msgspec.Struct):
    """What came for a request: vectors (little-endian float32; a score is one of one number), and how many tokens."""

    vectors: list[bytes]
    num_tokens: int = 0


class _Waiting:
    """A request, the messages it got, and whether that is all."""

    def __init__(self, num_vectors: int) -> None:
        self.found = Vectors([b""] * num_vectors)
        self.num_missing = num_vectors
        self.attempt = 0
        self.error: HeadraceError | None = None
        self.done = anyio.Event()

    def put(self, message: Embeddings) -> None:
        """Take vectors in; repeats (a second attempt begins anew) are the same vectors."""
        self.attempt = max(self.attempt, message.attempt)
        size = 4 * message.dimensions
        for at in range(len(message.vectors) // size):
            index = message.index + at
            if index < len(self.found.vectors):
                self.num_missing -= not self.found.vectors[index]
                self.found.vectors[index] = message.vectors[at * size : (at + 1) * size]
        self.found.num_tokens = message.num_tokens
        if not self.num_missing:
            self.done.set()


class EmbeddingClient:
    """Sends such requests and hands what comes back to those who wait."""

    def __init__(self, bus: Bus, make_job: Callable[[Request], Job]) -> None:
        self._bus = bus
        self._make_job = make_job
        self._waiting: dict[str, _Waiting] = {}

    async def embed(self, request: Request) -> Vectors:
        """Return the vectors of a request's inputs, or the scores of its pairs.

        Raises the error of the desk that failed on it. Cancelled, or late, it cancels the request on its way.
        """
        job = self._make_job(request)
        num_queries = request.pairs.num_queries if request.kind == "score" and request.pairs is not None else 0
        waiting = self._waiting[job.request_id] = _Waiting(len(request.inputs) - num_queries)
        try:
            with anyio.move_on_after(job.deadline - time.time()):
                await admit(self._bus, job, request)
                await waiting.done.wait()
        finally:
            del self._waiting[job.request_id]
            if not waiting.done.is_set():
                await self._cancel(job, waiting)
        if waiting.error is not None:
            raise waiting.error
        if not waiting.done.is_set():
            raise DeadlineExceededError("The request's deadline passed before all inputs were read.")
        return waiting.found

    def deliver(self, message: Embeddings) -> None:
        """Take vectors; those of a request that nobody waits for are dropped."""
        waiting = self._waiting.get(message.request_id)
        if waiting is not None:
            waiting.put(message)

    def fail(self, failure: Failure, error: HeadraceError) -> None:
        """Take a desk's failure."""
        waiting = self._waiting.get(failure.request_id)
        if waiting is not None and failure.attempt >= waiting.attempt:
            waiting.error = error
            waiting.done.set()

    async def _cancel(self, job: Job, waiting: _Waiting) -> None:
        with anyio.move_on_after(_CANCEL_S, shield=True):
            try:
                await cancel(self._bus, job.partition, job.request_id, attempt=waiting.attempt)
            except HeadraceError as error:
                logger.warning("request %s: not cancelled: %s", job.request_id, error.message)

"""A ring that runs in another thread, for tests that must not run in its loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from tests.ring import Ring
from tests.script import Piece, Script
from tests.scripted_request import Running
from wire.messages import ANSWER, REASONING, Cancel, Request, unpack_ids


def spoken(text: str, *, phase: int = ANSWER, after: anyio.Event | None = None) -> list[Piece]:
    """Return text as tokens of one byte each; the first waits for `after`."""
    pieces = [Piece(bytes([byte]), phase) for byte in text.encode()]
    return [Piece(pieces[0].raw, phase, after=after), *pieces[1:]]


def thought(text: str) -> list[Piece]:
    """Return text as reasoning tokens of one byte each."""
    return spoken(text, phase=REASONING)


Heard = TypeVar("Heard")


class LiveRing:
    """The blocking view of a ring."""

    def __init__(self, portal: BlockingPortal, ring: Ring) -> None:
        self.portal = portal
        self.ring = ring
        self.url = ring.url

    def play(self, *pieces: Piece, **options: Any) -> None:
        """Say these pieces to every request from now on, a few tokens in a chunk."""
        self.ring.replica.script = Script(pieces, **{"per_chunk": 8, **options})

    def answer(self, script: Callable[[Request], Script]) -> None:
        """Choose the script by the request."""
        self.ring.replica.script = script

    def gate(self) -> anyio.Event:
        """Return an event that pieces can wait for."""
        return anyio.Event()

    def open(self, gate: anyio.Event) -> None:
        """Let the pieces behind a gate through."""
        self.portal.call(gate.set)

    def cancelled(self, count: int = 1) -> list[Cancel]:
        """Wait for so many Cancels at the replica and return them."""
        return self.portal.call(self.ring.replica.cancelled, count)

    def heard(self, kind: type[Heard], count: int = 1) -> list[Heard]:
        """Wait for so many control messages of a kind at the replica and return them."""
        replica = self.ring.replica

        def found() -> list[Heard]:
            return [message for message in replica.control if isinstance(message, kind)]

        self.portal.call(replica.until, lambda: len(found()) >= count)
        return found()

    def ended_by(self, end: str) -> int:
        """Return how many requests ended so, by the edge's metrics."""

        async def read() -> int:
            lines = (await self.ring.http.get("/metrics")).text.splitlines()
            found = [line for line in lines if line.startswith("headrace_requests_total") and f'end="{end}"' in line]
            return int(sum(float(line.rsplit(" ", 1)[1]) for line in found))

        return self.portal.call(read)

    def until_idle(self) -> None:
        """Wait until no request is in flight."""
        self.portal.call(self.ring.until_idle)

    def converse(self, items: list[dict[str, Any]]) -> str:
        """Make a conversation of these items, at most 20, and return its id."""

        async def create() -> str:
            response = await self.ring.http.post("/v1/conversations", json={"items": items})
            created: str = response.raise_for_status().json()["id"]
            return created

        return self.portal.call(create)

    @property
    def requests(self) -> list[Running]:
        """What the replica was asked, oldest first."""
        return list(self.ring.replica.requests)

    def prompt_text(self, at: int = -1) -> str:
        """Return the prompt of a request as the model got it."""
        prompt = self.requests[at].prompt
        assert prompt is not None
        return self.ring.replica.vocabulary.decode_bytes(unpack_ids(prompt.token_ids)).decode()

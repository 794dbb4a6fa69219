"""What a request means for those who pay: whose it is, whether it may come in now, and its entry in the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio

from gateway.edge.bill import Bill
from gateway.edge.identity import new_request_id
from gateway.edge.tenancy.caller import current
from gateway.edge.tenancy.keyring import Keyring
from gateway.edge.tenancy.limits import Limits, tokens_wanted
from wire.bus import Bus
from wire.errors import HeadraceError, InvalidRequestError, RateLimitError
from wire.ledger import PATIENCE_S, Entry, Ledger
from wire.messages import Job, Request

logger = logging.getLogger(__name__)

_LEASE_SLACK_S = 60.0
_SETTLE_S = 5.0


class Accounts:
    """The accounts of one edge. Without keys nobody is asked for anything, and there is only the ledger."""

    def __init__(self, bus: Bus, keyring: Keyring | None = None) -> None:
        self.keyring = keyring
        self.limits = Limits(bus.route)
        self.ledger = Ledger(bus.route)

    def own(self, request: Request) -> Request:
        """Return the request with whose it is."""
        caller = current.get()
        return request if caller is None else caller.stamp(request)

    async def enter(self, request_id: str, request: Request, *, deadline: float) -> None:
        """Ask the limits of the caller's key. Raises ForbiddenError or RateLimitError."""
        caller = current.get()
        if caller is None:
            return
        try:
            await caller.enter(request_id, request, lease_s=deadline - time.time() + _LEASE_SLACK_S)
        except (InvalidRequestError, RateLimitError):
            raise
        except BaseException:  # the client has left, or the reply was lost: it may be in all the same
            with anyio.CancelScope(shield=True), anyio.move_on_after(_SETTLE_S), suppress(HeadraceError):
                await self.release(request_id, request, used=0)
            raise

    async def leave(self, job: Job, request: Request, bill: Bill, *, end: str) -> None:
        """Account for a request that is over; what goes wrong is logged, since its answer is out."""
        try:
            used = bill.prompt_tokens + bill.completion_tokens
            await self.release(job.request_id, request, used=used)
            if used:
                await self.ledger.write(_entry(job, request, bill, end))
        except HeadraceError as error:
            logger.error("request %s: not accounted for: %s", job.request_id, error.message)

    async def release(self, request_id: str, request: Request, *, used: int) -> None:
        """Give the limits back what a request did not use."""
        key = self.keyring.by_id(request.key_id) if self.keyring is not None else None
        if key is not None:
            await self.limits.leave(key, request_id, tokens_wanted(request), used=used)

    @asynccontextmanager
    async def spend(self, request: Request, *, timeout_s: float) -> AsyncIterator[Callable[[int], None]]:
        """Let a request in that costs prompt tokens only; the block tells how many it cost, if it gets so far."""
        request_id, used = new_request_id(), 0
        await self.enter(request_id, request, deadline=time.time() + timeout_s)

        def pay(num_tokens: int) -> None:
            nonlocal used
            used = num_tokens

        try:
            yield pay
        finally:
            job = Job(request_id=request_id, partition=0, model=request.model, edge="", deadline=0.0)
            with anyio.CancelScope(shield=True), anyio.move_on_after(_SETTLE_S):
                await self.leave(job, request, Bill(prompt_tokens=used), end="stop")

    async def keep(self) -> None:
        """Account for what dead edges left, until cancelled."""
        while True:
            await anyio.sleep(PATIENCE_S / 2)
            try:
                await self.ledger.sweep(settle=self.settle)
            except HeadraceError as error:
                logger.warning("the ledger was not swept: %s", error.message)

    async def settle(self, entry: Entry) -> None:
        """Free the place of a request whose edge is gone. What it took of the minute's tokens stays taken."""
        key = self.keyring.by_id(entry.key_id) if self.keyring is not None else None
        if key is not None:
            used = entry.prompt_tokens + entry.completion_tokens
            await self.limits.leave(key, entry.request_id, used, used=used)


def _entry(job: Job, request: Request, bill: Bill, end: str) -> Entry:
    return Entry(
        request_id=job.request_id,
        model=request.model,
        end=end,
        attempt=job.attempt,
        tenant=request.tenant,
        key_id=request.key_id,
        prompt_tokens=bill.prompt_tokens,
        cached_tokens=bill.cached_tokens,
        reasoning_tokens=bill.reasoning_tokens,
        completion_tokens=bill.completion_tokens,
        at=time.time(),
        fetched_tokens=bill.fetched_tokens,
        energy_j=bill.energy_j or 0.0,
    )

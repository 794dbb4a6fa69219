"""What a request cost here, for the ledger: noted in case that its edge does not live to account for it."""

from __future__ import annotations

import logging
import time

from model_svc.open_requests import OpenRequest
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.ledger import Entry, Ledger

log = logging.getLogger(__name__)


async def note_usage(bus: Bus, request: OpenRequest) -> None:
    """Note what a request that ended has cost; nothing if it never reached the engine."""
    entry = entry_of(request)
    if entry is None:
        return
    try:
        await Ledger(bus.route).note(entry)
    except HeadraceError as error:
        log.warning("request %s: its usage was not noted: %s", request.job.request_id, error.message)


def entry_of(request: OpenRequest) -> Entry | None:
    """Return a request's entry, counted over all its choices."""
    logs = [item for item in request.logs.values() if item.first is not None and item.last is not None]
    if not logs:
        return None
    first = logs[0].first
    assert first is not None
    reasons = [item.last.finish_reason for item in logs if item.last is not None]
    return Entry(
        request_id=request.job.request_id,
        model=request.model,
        end=request.error.code if request.error is not None else reasons[0] or "",
        attempt=request.job.attempt,
        tenant=request.tenant,
        key_id=request.key_id,
        prompt_tokens=first.num_prompt_tokens,
        cached_tokens=first.num_cached_tokens,
        reasoning_tokens=sum(item.last.num_reasoning_tokens for item in logs if item.last is not None),
        completion_tokens=sum(item.num_tokens for item in logs),
        at=time.time(),
        by="replica",
        fetched_tokens=first.num_fetched_tokens,
        energy_j=request.energy_j or 0.0,
    )

"""Writes down now and then what requests have generated: where their edge dies with this replica, another goes on.

A look a second, one trip for all requests. Each writes all of its ids, but only when an eighth has come since: over the
answer that is a few bytes a token, and at most an eighth (or some 64 tokens) has to be made again.
"""

from __future__ import annotations

import logging

import anyio

from model_svc.open_requests import OpenRequest, OpenRequests
from wire.bus import Bus
from wire.errors import HeadraceError

log = logging.getLogger(__name__)

EVERY_S = 1.0
_LEAST = 64
_SHARE = 8


async def keep_checkpoints(bus: Bus, requests: OpenRequests) -> None:
    """Write checkpoints until cancelled."""
    while True:
        await anyio.sleep(EVERY_S)
        due = [(request, request.num_tokens) for request in requests if _is_due(request)]
        try:
            await bus.update_records((request.job, {"checkpoint": request.checkpoint()}) for request, _ in due)
        except HeadraceError as error:  # the next look tries again
            log.warning("checkpoints were not written: %s", error.message)
            continue
        for request, num_tokens in due:
            request.num_kept = num_tokens


def _is_due(request: OpenRequest) -> bool:
    if not request.keeps_checkpoints or request.ended.is_set():
        return False
    num_tokens = request.num_tokens
    return num_tokens - request.num_kept >= max(_LEAST, num_tokens // _SHARE)

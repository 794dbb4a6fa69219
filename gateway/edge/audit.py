"""The audit log of the safety rules: a bounded stream on the bus that holds which rule matched where, never the text.

`digest` is a keyed hash of what matched, so that the same value can be recognised; the key lies on the bus as a secret
of the deployment, and without it a short value cannot be found by trying.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from gateway.edge.metrics import Metrics
from gateway.postprocess.safety.hit import Hit
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.messages import SafetyEvent

logger = logging.getLogger(__name__)

MAXLEN = 100_000
_MAX_HITS = 200  # of one text; a text with more says nothing new


class Audit:
    """Writes to the audit log."""

    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._bus = bus
        self._metrics = metrics

    async def note(
        self, hits: Sequence[Hit], *, request_id: str = "", tenant: str = "", model: str = "", choice: int = 0
    ) -> None:
        """Write what rules found. A log that cannot be written stops nobody: the rules have acted already."""
        for hit in hits:
            self._metrics.note_safety(hit.action)
        try:
            for hit in hits[:_MAX_HITS]:
                event = SafetyEvent(
                    request_id=request_id,
                    tenant=tenant,
                    model=model,
                    rule=hit.rule,
                    action=hit.action,
                    direction=hit.direction,
                    choice=choice,
                    start=hit.start,
                    end=hit.end,
                    digest=hit.digest,
                    failed=hit.failed,
                    at=time.time(),
                )
                await self._bus.publish(topics.safety_audit(), event, maxlen=MAXLEN)
        except HeadraceError as error:
            logger.warning("request %s: the audit log could not be written: %s", request_id, error.message)

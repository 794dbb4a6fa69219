"""The audit log of the safety rules: a bounded stream on the bus that holds which rule matched where, never the text.

`digest` is a keyed hash of what matched, so that the same value can be recognised; the key lies on the bus as a secret
of the deployment, and without it a short value cannot be found by trying.

Entries wait here until they are written, however long the bus stalls, and go out many in one trip. Nobody waits for
them but a prompt that a rule with `audit = "first"` matched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import anyio
from anyio.abc import TaskStatus

from gateway.edge.metrics import Metrics
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError, UnavailableError
from wire.messages import SafetyEvent

logger = logging.getLogger(__name__)

MAXLEN = 100_000
_MAX_HITS = 1_000  # of one text; a text with more says nothing new
_AT_ONCE = 1_000
_AGAIN_S = 0.5
_LAST_S = 2.0  # for what waits when the edge ends


class Audit:
    """Writes to the audit log. More than the log could hold does not wait: the oldest would be pushed out anyway."""

    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._bus = bus
        self._metrics = metrics
        self._waiting: list[SafetyEvent] = []
        self._num_noted = self._num_done = 0
        self._news = anyio.Event()
        self._writing = anyio.Lock()

    @property
    def num_waiting(self) -> int:
        """Return how many entries are not written yet."""
        return self._num_noted - self._num_done

    def note(
        self, hits: Sequence[Hit], *, request_id: str = "", tenant: str = "", model: str = "", choice: int = 0
    ) -> None:
        """Let entries be written about what rules found."""
        for hit in hits:
            self._metrics.note_safety(hit.action)
        events = [_event(hit, request_id, tenant, model, choice) for hit in hits[:_MAX_HITS]]
        self._waiting += events
        self._num_noted += len(events)
        self._forget(len(self._waiting) - MAXLEN)
        if events:
            self._news.set()

    async def note_first(self, policy: SafetyPolicy, hits: Sequence[Hit], *, tenant: str, model: str) -> None:
        """Note hits, and wait until they are written if one of their rules is to be audited first.

        Raises UnavailableError when they could not be written; they are written later all the same.
        """
        self.note(hits, tenant=tenant, model=model)
        if not any(policy.audits_first(hit.rule) for hit in hits):
            return
        ours = self._num_noted
        try:
            while self._num_done < ours:
                await self._write()
        except HeadraceError as error:
            message = "A safety rule wants what it found in the audit log first, and that cannot be written now."
            raise UnavailableError(message, retry_after_s=1.0) from error

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write what waits, until cancelled; then try once more."""
        task_status.started()
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                await self._write_all()
        finally:
            with anyio.move_on_after(_LAST_S, shield=True):
                await self._write_all(patient=False)
            if self.num_waiting:
                logger.error("%d entries of the audit log could not be written", self.num_waiting)

    async def _write_all(self, *, patient: bool = True) -> None:
        while self.num_waiting:
            try:
                await self._write()
            except HeadraceError as error:
                logger.warning("%d entries of the audit log wait: %s", self.num_waiting, error.message)
                if not patient:
                    return
                await anyio.sleep(_AGAIN_S)

    async def _write(self) -> None:
        """Write the oldest entries in one trip; they stay if that fails."""
        async with self._writing:
            batch = self._waiting[:_AT_ONCE]
            del self._waiting[:_AT_ONCE]
            try:
                await self._bus.publish_many(topics.safety_audit(), batch, maxlen=MAXLEN)
            except BaseException:
                self._waiting[:0] = batch
                self._forget(len(self._waiting) - MAXLEN)
                raise
            self._num_done += len(batch)

    def _forget(self, count: int) -> None:
        if count > 0:
            del self._waiting[:count]
            self._num_done += count


def _event(hit: Hit, request_id: str, tenant: str, model: str, choice: int) -> SafetyEvent:
    return SafetyEvent(
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

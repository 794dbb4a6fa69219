"""What remains to be done when an answer is over: cancel what still runs, keep an interrupted turn, settle the bill.

That goes on beside the answers, since no client need wait for it; only a drain does. What goes wrong with one request's
end is logged: it must not end the edge, and everybody's streams with it.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskGroup

from gateway.edge.admission import Admission
from gateway.edge.generation import Generation
from gateway.edge.metrics import Metrics
from gateway.edge.safety.safety import Safety
from gateway.edge.tenancy.accounts import Accounts
from wire.errors import HeadraceError

logger = logging.getLogger(__name__)


class Endings:
    """The ends of one edge's requests, each in a task of `tasks`."""

    def __init__(
        self, tasks: TaskGroup, admission: Admission, accounts: Accounts, metrics: Metrics, safety: Safety | None
    ) -> None:
        self._tasks = tasks
        self._admission = admission
        self._accounts = accounts
        self._metrics = metrics
        self._safety = safety
        self._num_ending = 0
        self._none_open = anyio.Event()

    @property
    def num_open(self) -> int:
        """Requests in flight, and those whose end is still being put away."""
        return self._admission.inflight + self._num_ending

    async def until_none_open(self) -> None:
        """Wait until the last request has ended."""
        while self.num_open:
            self._none_open = anyio.Event()
            await self._none_open.wait()

    def tell_if_none_open(self) -> None:
        """Wake who waits for the last request; called when one gives up its slot, or its end is put away."""
        if not self.num_open:
            self._none_open.set()

    def begin(self, generation: Generation, operation: str) -> None:
        """End a request whose answer is over, or was left off some time ago."""
        self._note_ending(self._num_ending + 1)
        self._tasks.start_soon(self._end, generation, operation)

    def stop_choice(self, generation: Generation, choice: int | None) -> None:
        """Tell the replica that a choice (None: all) is not needed any more, without waiting."""
        if choice is not None:
            generation.flight.end(choice)
        self._tasks.start_soon(self._cancel, generation, choice)

    async def _end(self, generation: Generation, operation: str) -> None:
        try:
            if not generation.handed_over:
                if not generation.ended:
                    await self._cancel(generation)
                await generation.settle_unfinished()
                await self._accounts.leave(generation.job, generation.request, generation.bill, end=generation.outcome)
        except HeadraceError:
            logger.exception("request %s: its broken-off turn could not be stored", generation.job.request_id)
        except Exception:
            logger.exception("request %s: its end was not put away", generation.job.request_id)
        finally:
            self._note_ending(self._num_ending - 1)
            self.tell_if_none_open()
            if not generation.handed_over:
                self._metrics.note_end(generation, operation)
        if self._safety is not None and not generation.handed_over:
            self._safety.note(generation)

    def _note_ending(self, count: int) -> None:
        self._num_ending = count
        self._metrics.note_ending(count)

    async def _cancel(self, generation: Generation, choice: int | None = None) -> None:
        self._metrics.note_cancel()
        try:
            await generation.cancel(choice)
        except HeadraceError as error:
            logger.warning("request %s: not cancelled: %s", generation.job.request_id, error.message)

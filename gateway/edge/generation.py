"""One admitted request as the edge sees it: tokens in, updates for the client out, and the bill at the end.

Every request ends in exactly one of four ways: all choices finished, a Failure, a fault on our side (deadline, slow
client), or the client left. The last two cancel what the replica still does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from gateway.edge import jobs
from gateway.edge.bill import Bill
from gateway.edge.choice import Choice
from gateway.edge.chunks import only_first, without_first
from gateway.edge.faults import fault_of
from gateway.edge.flight import Flight
from gateway.edge.reply import ChoiceUpdate, Reply, shown
from gateway.edge.turn import turn_of
from gateway.postprocess.pipeline import Pipeline
from gateway.postprocess.safety.hit import Hit
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError, UnavailableError
from wire.messages import Job, Prompt, Request, TokenChunk, Turn, pack_ids, unpack_ids

HISTORY_MAXLEN = 10_000  # when a history desk has so much waiting, the response fails instead of being lost
_SLICE = 16  # chunks detokenized before others get their turn; a slow client may have thousands waiting
_RECORD_S = 2.0
_SETTLE_S = 10.0


class StopChoice(Protocol):
    """Tells the replica that a choice (None: all) is not needed any more."""

    def __call__(self, generation: Generation, choice: int | None) -> None:
        """Return at once; the message goes out in the background."""


class Generation:
    """A request in flight. Drive it with `updates`, end it with `settle`."""

    def __init__(
        self,
        job: Job,
        request: Request,
        flight: Flight,
        reply: Reply,
        pipelines: list[Pipeline],
        *,
        bus: Bus,
        stop_choice: StopChoice,
    ) -> None:
        self.job = job
        self.request = request
        self.reply = reply
        self.flight = flight
        self.bell = flight.bell
        self.name = job.request_id  # in the log
        self.error: HeadraceError | None = None
        self.bill = Bill()
        self.first_token_at: float | None = None
        self.started_at = time.perf_counter()
        self._last_token_at = self.started_at
        self._choices = [Choice(pipeline) for pipeline in pipelines]
        self._num_running = len(pipelines)
        self._bus = bus
        self._stop_choice = stop_choice
        self._settled = False
        self.handed_over = False  # another edge, or another answer here, goes on with the request

    @property
    def generations(self) -> tuple[Generation, ...]:
        """Return the requests that this answer is made of."""
        return (self,)

    @property
    def settled(self) -> bool:
        """Tell whether the bill is made up."""
        return self._settled

    @property
    def ended(self) -> bool:
        """Tell whether all choices have a finish reason."""
        return not self._num_running

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Return the finish reasons so far."""
        return tuple(choice.finish_reason for choice in self._choices if choice.finish_reason is not None)

    @property
    def outcome(self) -> str:
        """Return how the request ended: a finish reason, an error's code, or client_gone."""
        if self.error is not None:
            return self.error.code
        return self.finish_reasons[0] if self.ended else "client_gone"

    @property
    def hits(self) -> list[list[Hit]]:
        """Return what safety rules found in each choice; no text is in it."""
        return [choice.pipeline.hits for choice in self._choices]

    @property
    def num_tokens(self) -> int:
        """Return how many tokens were generated so far, over all choices."""
        return sum(choice.pipeline.num_tokens for choice in self._choices)

    @property
    def energy_j(self) -> float | None:
        """Return what was used so far; None where it is not metered."""
        used = [joules for choice in self._choices for joules in choice.energy_j.values()]
        return sum(used) if used else None

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is something to answer with, or until the time is up."""
        await self.flight.wait(timeout_s)

    def raise_early_failure(self) -> None:
        """Raise the error that came before any token, so that it can be the HTTP status."""
        if self.flight.early_failure is not None:
            self.error = self.flight.early_failure
            raise self.error

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, with the times that are known by now."""
        for chunk in self.flight.peek()[:1]:
            self.bill.note_timings(chunk.timings_ms)
        timing = self.bill.server_timing()
        return {"Server-Timing": timing} if timing else {}

    async def updates(self) -> AsyncIterator[list[ChoiceUpdate]]:
        """Yield what is new until all choices ended. Raises the request's error."""
        while not self.ended:
            if new := await self.take_updates():
                yield new

    async def take_updates(self, *, slow: bool | None = None) -> list[ChoiceUpdate]:
        """Wait for tokens and return what is new, which may be nothing to show. Raises the request's error.

        `slow`: it came while the client was being written to (None: if it is here already), and is joined into few
        large updates. What comes while we wait stays apart, each chunk an update, however many come at once.
        """
        slow = self.flight.is_ready if slow is None else slow
        joined: dict[int, ChoiceUpdate] = {}
        updates: list[ChoiceUpdate] = []
        try:
            for at, chunk in enumerate(await self.flight.take()):
                if at % _SLICE == _SLICE - 1:
                    await anyio.lowlevel.checkpoint()
                update = joined.get(chunk.choice)
                if update is None:
                    update = ChoiceUpdate(chunk.choice, [])
                    updates.append(update)
                    if slow:
                        joined[chunk.choice] = update
                self._feed(chunk, update)
                if chunk.prompt_logprobs:
                    await self._add_prompt(chunk, update)
        except HeadraceError as error:
            self.error = error
            raise
        return shown(updates)

    def take_at_once(self) -> list[ChoiceUpdate] | None:
        """Return what is new, each chunk an update; None: nothing is, or it needs more than a call. Does not wait."""
        chunks = self.flight.take_at_once(_SLICE)
        if chunks is None:
            return None
        updates = [ChoiceUpdate(chunk.choice, []) for chunk in chunks]
        for chunk, update in zip(chunks, updates, strict=True):
            self._feed(chunk, update)
        if self.ended:  # by a stop string, or a rule
            self.bell.ring()
        return shown(updates)

    async def _add_prompt(self, chunk: TokenChunk, update: ChoiceUpdate) -> None:
        """Put the prompt's log probabilities beside its ids, which lie in the record."""
        prompt = await self._prompt()
        if prompt is not None and prompt.num_tokens == len(chunk.prompt_logprobs) + 1:
            update.prompt_ids = tuple(unpack_ids(prompt.token_ids))
            update.prompt_logprobs = chunk.prompt_logprobs

    async def catch_up(self, num_tokens: int) -> list[ChoiceUpdate]:
        """Take in exactly the first tokens of a request with one choice, which were shown by another edge."""
        update = ChoiceUpdate(0, [])
        while self.num_tokens < num_tokens and not self.ended:
            chunks = await self.flight.take()
            for at, chunk in enumerate(chunks):
                wanted = num_tokens - self.num_tokens
                if wanted < len(chunk.token_ids):
                    self._feed(only_first(chunk, wanted), update)
                    self.flight.put_back([without_first(chunk, wanted), *chunks[at + 1 :]])
                    break
                self._feed(chunk, update)
        return [update] if update.num_tokens or update.finish_reason else []

    def _feed(self, chunk: TokenChunk, update: ChoiceUpdate) -> None:
        """Give a chunk to its choice. Raises the error that it ends with."""
        if not 0 <= chunk.choice < len(self._choices):
            return
        choice = self._choices[chunk.choice]
        if choice.finish_reason is not None:
            return
        self._note(chunk)
        if chunk.finish_reason is not None and (fault := fault_of(chunk, self.request)) is not None:
            raise fault
        choice.feed(chunk, update)
        update.num_prompt_tokens = self.bill.prompt_tokens
        update.num_cached_tokens = self.bill.cached_tokens
        if choice.finish_reason is not None:
            self._num_running -= 1
        if choice.stopped:
            self._stop_choice(self, chunk.choice if self._num_running else None)

    def _note(self, chunk: TokenChunk) -> None:
        if chunk.token_ids:
            self._last_token_at = time.perf_counter()
            if self.first_token_at is None:
                self.first_token_at = self._last_token_at
                self.bill.ttft_ms = (self.first_token_at - self.started_at) * 1e3
        if chunk.num_prompt_tokens or chunk.timings_ms:
            self.bill.note(chunk)

    async def settle(self, status: str = "") -> Bill:
        """Make up the bill and store the turn if the client wants it stored; only the first call does anything.

        `status` "" means that the answer ended by itself. Raises if a turn cannot be stored.
        """
        if self._settled:
            return self.bill
        self._settled = True
        self._fill_bill()
        if self.request.conversation is None or not self.request.conversation.store:
            if not (self.bill.knows_prompt and self.bill.prompt_tokens):
                self._note_prompt(await self._prompt())
            return self.bill
        with anyio.move_on_after(_SETTLE_S, shield=True) as scope:  # a client that leaves now must not lose its turn
            prompt = await self._prompt()
            self._note_prompt(prompt)
            turn = self._turn(prompt, status)
            await self._bus.send(topics.history(self.job.partition), turn, maxlen=HISTORY_MAXLEN)
        if scope.cancelled_caught:
            raise UnavailableError("The response could not be stored in time.")
        return self.bill

    async def settle_unfinished(self) -> None:
        """Settle for a client that left. Not kept: a turn without any token, and one that ended as an HTTP error."""
        if self._settled:
            return
        if self.num_tokens == 0 or self.error is not None:
            self._settled = True
            self._fill_bill()
        else:
            await self.settle("" if self.ended else "incomplete")

    async def _prompt(self) -> Prompt | None:
        # Without it the bill lacks two numbers; the answer is complete.
        with anyio.move_on_after(_RECORD_S), suppress(HeadraceError):
            return (await self._bus.record(self.job.partition, self.job.request_id, "prompt")).get("prompt")
        return None

    def _note_prompt(self, prompt: Prompt | None) -> None:
        if prompt is not None:
            self.bill.prompt_tokens = self.bill.prompt_tokens or prompt.num_tokens
            self.bill.note_prompt(prompt.note)

    def _fill_bill(self) -> None:
        bill = self.bill
        bill.completion_tokens = self.num_tokens
        bill.reasoning_tokens = sum(choice.pipeline.num_reasoning_tokens for choice in self._choices)
        bill.accepted_prediction_tokens = sum(choice.num_accepted_drafts for choice in self._choices)
        bill.rejected_prediction_tokens = sum(choice.num_rejected_drafts for choice in self._choices)
        bill.reasoning_ended_by = self._choices[0].reasoning_ended_by
        bill.energy_j = self.energy_j
        bill.note_safety([delay for choice in self._choices for delay in choice.pipeline.delays], self.hits)
        if self.first_token_at is not None:
            decode_s = self._last_token_at - self.first_token_at
            bill.decode_ms = bill.decode_ms or decode_s * 1e3
            if bill.completion_tokens > 1 and decode_s > 0:
                bill.tokens_per_second = (bill.completion_tokens - 1) / decode_s

    def _turn(self, prompt: Prompt | None, status: str) -> Turn:
        response = self.reply.stored(self.bill, status, self.error)
        first, attempt = self._choices[0], self.flight.attempt
        ids = prompt.token_ids + pack_ids(first.pipeline.token_ids) if prompt is not None and first.clean else b""
        return turn_of(self.job, self.request, self.reply, response, attempt=attempt, prompt_ids=ids)

    async def cancel(self, choice: int | None = None) -> None:
        """Stop a choice, or everything."""
        job, flight = self.job, self.flight
        ref = self.request.conversation
        keeps = ref is not None and ref.store and (self._settled or (self.num_tokens > 0 and self.error is None))
        whom: dict[str, Any] = {"attempt": flight.attempt, "replica_id": flight.replica_id, "choice": choice}
        await jobs.cancel(self._bus, job.partition, job.request_id, turn_follows=keeps, **whom)

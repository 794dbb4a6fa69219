"""The requests that this replica works on, and for a short time those it has ended: a client may come back for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import anyio
import msgspec

from model_svc.token_log import TokenLog
from wire.errors import HeadraceError, RequestCancelledError
from wire.messages import PROOF_TOKENS, Checkpoint, Job, PromptNote, TokenChunk, unpack_ids

KEPT_S = 60.0
KEPT_MAX = 1024  # ended requests; beyond, the oldest is forgotten and its client gets what the edge has kept
_EARLY_MAX = 1024  # wishes for requests that have not come yet


class OpenRequest:
    """One request: its job, what it said so far, and where that goes."""

    def __init__(self, job: Job, wait_ms: float = 0.0) -> None:
        self.job = job
        self.edge = job.edge
        self.num_choices = 1
        self.tenant = self.key_id = ""
        self.model = job.model  # or one of its adapters, as its client calls it
        self.prompt_note: PromptNote | None = None
        self.logs: dict[int, TokenLog] = {}
        self.error: HeadraceError | None = None
        self.cancelled = False
        self.owes_proof = PROOF_TOKENS  # so many tokens more, and whatever ends this replica is not its doing
        self.submitted = False
        self.keeps_checkpoints = False
        self.num_kept = 0  # tokens in the newest checkpoint
        self.closed_at: dict[int, tuple[int, ...]] = {}  # where the client ended thinking, by choice
        self.closed_anew = False  # and the record does not say so yet
        self.wait_ms = wait_ms
        self.fetch_ms = 0.0  # what it took to get blocks from another replica
        self.fetched = (0, 0)  # from which token of the prompt on, and up to which, they came
        self.is_prefill = False  # only the prompt is wanted here; then the job goes on
        self.prefilled_tokens, self.prefill_ms = 0, 0.0
        self.prefill_j: float | None = None  # what computing the prompt has used, here or on a prefill replica before
        self.num_pictures = 0  # for which it holds room
        self.ends_thinking = False  # the client wished so before the engine knew the request
        self.ended = anyio.Event()  # all choices have a finish reason, or there is an error
        self.settled = anyio.Event()  # and the edge has all of it

    @property
    def finished(self) -> bool:
        """Whether every choice has a finish reason."""
        return len(self.logs) == self.num_choices and all(log.finished for log in self.logs.values())

    def add(self, chunk: TokenChunk) -> None:
        """Take what the engine produced; first and last chunk also carry the desks' times and the prompt's note."""
        if chunk.timings_ms:
            timings = {**self.job.timings_ms, "model.wait": self.wait_ms, **chunk.timings_ms}
            if self.fetch_ms:
                timings["fetch"] = self.fetch_ms
            begin, end = self.fetched
            num_fetched = max(0, min(chunk.num_cached_tokens, end) - begin)
            chunk = msgspec.structs.replace(
                chunk, timings_ms=timings, prompt_note=self.prompt_note, num_fetched_tokens=num_fetched
            )
        if self.prefill_j is not None and chunk.energy_j is not None and not chunk.choice:
            chunk = msgspec.structs.replace(chunk, energy_j=chunk.energy_j + self.prefill_j)
        log = self.logs.get(chunk.choice)
        if log is None:
            log = self.logs[chunk.choice] = TokenLog()
        log.add(chunk)
        if chunk.closed_at >= 0 and chunk.closed_at not in (places := self.closed_at.get(chunk.choice, ())):
            self.closed_at[chunk.choice] = (*places, chunk.closed_at)
            self.closed_anew = True
        if chunk.finish_reason is not None and self.finished:
            self.ended.set()

    def begin_with(self, checkpoint: Checkpoint) -> None:
        """Take what earlier attempts generated."""
        for choice, ids in checkpoint.token_ids.items():
            if choice not in self.logs:
                self.logs[choice] = TokenLog()
                self.logs[choice].begin_with(unpack_ids(ids), checkpoint.marks.get(choice, ()))
        self.num_kept = self.num_tokens

    @property
    def num_tokens(self) -> int:
        """How many tokens there are of all choices."""
        return sum(log.num_tokens for log in self.logs.values())

    @property
    def energy_j(self) -> float | None:
        """What all choices have used of energy, None where it is not metered."""
        used = [log.last.energy_j for log in self.logs.values() if log.last is not None]
        known = [joules for joules in used if joules is not None]
        return sum(known) if known else None

    def checkpoint(self) -> Checkpoint:
        """Return what another replica can go on from."""
        shots = {choice: log.snapshot() for choice, log in self.logs.items()}
        return Checkpoint(
            attempt=self.job.attempt,
            token_ids={choice: ids for choice, (ids, _) in shots.items()},
            marks={choice: marks for choice, (_, marks) in shots.items() if marks},
        )

    def pass_on(self) -> None:
        """End the part of a request that is done here, before a word was said."""
        self.ended.set()
        self.settled.set()

    def fail(self, error: HeadraceError) -> None:
        """End the request with an error."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()


class OpenRequests:
    """All of them by id. An older attempt of the same request is replaced."""

    def __init__(self) -> None:
        self._by_id: dict[str, OpenRequest] = {}
        self._kept: deque[tuple[float, OpenRequest]] = deque()
        self._early: deque[str] = deque(maxlen=_EARLY_MAX)
        self.num_open = 0
        self.idle = anyio.Event()
        self.idle.set()

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._by_id.values())

    @property
    def engine_has_work(self) -> bool:
        """Whether the engine owes anybody something."""
        return any(request.submitted and not request.ended.is_set() for request in self)

    def get(self, request_id: str) -> OpenRequest | None:
        """Return a request that is open or kept."""
        return self._by_id.get(request_id)

    def open(self, request: OpenRequest) -> bool:
        """Enter a request; False if this attempt, or a later one, is here already."""
        known = self._by_id.get(request.job.request_id)
        if known is not None and known.job.attempt >= request.job.attempt:
            return False
        if known is not None:
            known.fail(RequestCancelledError("a later attempt of this request took over"))
        self._by_id[request.job.request_id] = request
        request.ends_thinking = request.job.request_id in self._early
        if self.num_open == 0:
            self.idle = anyio.Event()
        self.num_open += 1
        return True

    def end_thinking_of(self, request_id: str) -> None:
        """Have the thinking of a request end that has been placed here and not been read yet: streams overtake."""
        self._early.append(request_id)

    def forget(self, request: OpenRequest) -> None:
        """Know nothing of a request any more that goes on elsewhere: not a word of it was said here. Close it later."""
        if self._by_id.get(request.job.request_id) is request:
            del self._by_id[request.job.request_id]

    def close(self, request: OpenRequest, now: float) -> None:
        """Count a request as ended; what it said is kept for a while."""
        self._kept.append((now, request))
        self.num_open -= 1
        if self.num_open == 0:
            self.idle.set()
        while self._kept and (len(self._kept) > KEPT_MAX or self._kept[0][0] < now - KEPT_S):
            _, old = self._kept.popleft()
            if self._by_id.get(old.job.request_id) is old:
                del self._by_id[old.job.request_id]

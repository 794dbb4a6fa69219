"""One sequence: a choice of a request on its way through the engine. The one mutable thing in the engine."""

from __future__ import annotations

import sys
from array import array
from enum import Enum

from model_svc.engine.bad_words import BadWords
from model_svc.engine.drafting import Drafting
from model_svc.engine.grammar import AnswerGrammar
from model_svc.engine.pictures import PlacedPicture
from model_svc.engine.plan import NewSequence
from model_svc.engine.prompt_scores import PromptScores
from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.request import EngineRequest, choice_seed
from model_svc.engine.stopping import StopRule
from wire import block_hash
from wire.block_hash import DIGEST_BYTES
from wire.messages import TokenLogprob, unpack_ids


class Status(Enum):
    """Where a sequence is. A preempted one is waiting again."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class Sequence:
    """Tokens, blocks and progress of one choice.

    There is no phase: `num_computed_tokens` (planned steps included) catches up with `num_tokens + num_pending`, where
    `num_pending` samples are in flight and their ids unknown. `epoch` goes up when samples in flight became void.
    """

    __slots__ = (
        "arrived_at", "attempt", "bad_words", "block_hashes", "block_table", "choice", "closed_at", "closed_before",
        "drafting", "energy_j", "epoch", "finish_reason", "first_scheduled_at", "first_token_at", "free", "grammar",
        "key", "leader", "logprobs", "mark", "newest_state", "num_accepted_drafts", "num_blocks_sent",
        "num_cached_tokens", "num_computed_tokens", "num_drafts", "num_emitted", "num_inflight", "num_output_tokens",
        "num_pending", "num_prompt_tokens", "num_registered", "num_rejected_drafts", "num_replayed", "pictures",
        "plain", "prefilled", "prompt_scores", "rank", "reasoning", "request", "request_id", "restarted", "restore",
        "resync", "seed", "sentence_ends", "slot", "started_output", "state_cuts", "state_end", "status", "stop",
        "stop_token", "stuck", "token_ids", "waited_s", "waiting_since", "work_ms",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, choice: int, stop: StopRule, arrived_at: float = 0.0) -> None:
        self.request = request
        self.request_id = request.request_id
        self.attempt = request.attempt
        self.choice = choice
        self.seed = choice_seed(request, choice)
        self.stop = stop
        self.key: tuple[int, ...] = ()
        self.mark = 0
        self.rank = 0  # lower ones may preempt it; equals never
        self.leader: Sequence | None = None
        self.status = Status.WAITING
        self.finish_reason: str | None = None
        self.stop_token = False
        self.stuck = False  # its rules left no token to say
        self.reasoning: ReasoningTracker | None = None
        self.grammar: AnswerGrammar | None = None
        self.sentence_ends = b""
        self.pictures: tuple[PlacedPicture, ...] = ()
        self.bad_words = BadWords(request.prompt.bad_word_ids) if request.prompt.bad_word_ids else None
        self.free = False  # its draws hang on no rules that change; like the next one it is set once, at the beginning
        self.plain = False  # and nothing but ids is said of them
        self.closed_before = request.closed_at.get(choice, ())  # by the client, after how many generated tokens
        self.closed_at = -1  # where the client has just ended thinking, until a chunk has told it

        self.token_ids = unpack_ids(request.prompt.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.token_ids += unpack_ids(request.checkpoint.get(choice, b""))
        wanted = request.sampling.prompt_logprobs
        self.prompt_scores = PromptScores(self.num_prompt_tokens, wanted) if wanted is not None and not choice else None
        self.num_output_tokens = len(self.token_ids) - self.num_prompt_tokens
        self.num_emitted = self.num_output_tokens
        self.num_replayed = 0
        self.started_output = False
        self.logprobs: list[TokenLogprob] = []

        self.slot = -1
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_computed_tokens = 0
        self.num_registered = 0
        self.num_blocks_sent = 0
        self.num_pending = 0
        self.num_inflight = 0
        self.num_drafts = 0  # in flight; they count as pending draws, too
        self.drafting: Drafting | None = None
        self.num_accepted_drafts = 0
        self.num_rejected_drafts = 0
        self.restore = -1  # the snapshot that it begins with; like the next three of a model with states
        self.state_end = 0  # how many tokens its state has taken in, planned steps included
        self.state_cuts: tuple[int, ...] = ()  # where its prompt's steps end, to keep the state
        self.newest_state = b""  # the name of the last snapshot within its answer
        self.epoch = 0
        self.resync = False
        self.prefilled = False
        self.restarted = False  # it was preempted: what it finds cached may be its own work

        self.num_cached_tokens = -1
        self.arrived_at = arrived_at
        self.waiting_since = arrived_at  # for its next token: in the queue, or while its prompt is computed
        self.waited_s = 0.0  # before that
        self.first_scheduled_at = 0.0
        self.first_token_at = 0.0
        self.energy_j = 0.0  # that is accounted for, and the work behind it (`model_svc.engine.energy`)
        self.work_ms = 0.0

    @property
    def num_tokens(self) -> int:
        """How many tokens are known: prompt and output."""
        return len(self.token_ids)

    @property
    def output_ids(self) -> list[int]:
        """The generated ids, forced ones included."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        """Whether no more tokens come."""
        return self.status is Status.FINISHED

    @property
    def waits(self) -> bool:
        """Whether it cannot start yet: the first choice still computes the prompt they share, or a grammar compiles."""
        leader = self.leader
        if leader is not None and not leader.prefilled and not leader.finished:
            return True
        return self.grammar is not None and self.grammar.matcher is None

    @property
    def max_pending(self) -> int:
        """With how many draws in flight the next one can be planned: what it may be can hang on those before it."""
        if self.bad_words is not None and self.bad_words.hang_on_output:
            return 0
        if self.grammar is not None and self.grammar.governs:
            return 1  # it is computed while the mask of its draw is not known yet
        soft = self.reasoning is not None and self.reasoning.lands_softly
        return 1 if soft else sys.maxsize

    @property
    def ends_thinking(self) -> bool:
        """Whether the client ended thinking just here in an earlier attempt."""
        here = self.closed_before and self.num_output_tokens in self.closed_before
        return bool(here) and self.reasoning is not None and self.reasoning.is_open

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self.token_ids.append(token_id)
        self.num_output_tokens += 1

    def take_back(self) -> None:
        """Undo the newest `append`; what is put in its place goes by `jump`."""
        self.token_ids.pop()
        self.num_output_tokens -= 1
        if self.logprobs:
            self.logprobs.pop()

    def jump(self, token_ids: tuple[int, ...]) -> None:
        """Add tokens that need no draw: the next step computes them all at once, what is in flight for here is void."""
        self.num_computed_tokens = min(self.num_computed_tokens, len(self.token_ids))  # beyond lie void draws
        self.token_ids += token_ids
        self.num_output_tokens += len(token_ids)
        self.num_pending = self.num_drafts = 0
        self.epoch += 1
        self.resync = self.slot >= 0  # the runner counted the void draw, and has not seen these ids

    def void_draws(self) -> None:
        """Give up the draws in flight: the last token is computed again, for a draw under other rules."""
        self.num_computed_tokens = min(self.num_computed_tokens, len(self.token_ids) - 1)
        self.num_pending = self.num_drafts = 0
        self.epoch += 1
        self.resync = self.slot >= 0

    def hashes(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Return the names of the first full blocks (at most `num_blocks`), extending the chain where needed."""
        names = self.block_hashes
        if not names and self.request.prompt.block_size == block_size:
            # The tokenizer desk has named the prompt's blocks already: 1.5 ms for 4,096 tokens, saved before the first.
            given = self.request.prompt.block_hashes
            names += [given[at : at + DIGEST_BYTES] for at in range(0, len(given), DIGEST_BYTES)]
        while len(names) < num_blocks:
            begin, end = len(names) * block_size, (len(names) + 1) * block_size
            parent = names[-1] if names else self._root()
            pictures = block_hash.pictures_in(self.request.prompt.images, begin, end)
            names.append(block_hash.extend(parent, self.token_ids[begin:end], pictures))
        return names[:num_blocks]

    def new_in_slot(self) -> NewSequence:
        """Return what a runner must know to set up this sequence's slot."""
        return NewSequence(
            sampling=self.request.sampling,
            seed=self.seed,
            prompt_ids=self.request.prompt.token_ids,
            generated_ids=array("i", self.output_ids).tobytes(),
            stop_token_ids=tuple(sorted(self.stop.stop_ids)),
            sentence_ends=self.sentence_ends,
            barred_ids=self.bad_words.always if self.bad_words is not None else (),
            adapter=self.request.adapter,
        )

    def _root(self) -> bytes:
        # A prompt without a root shares with its own choices only.
        return self.request.prompt.block_root or block_hash.root(b"", model=self.request_id, block_size=0)

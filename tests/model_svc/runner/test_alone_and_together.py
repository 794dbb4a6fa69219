"""Whatever requests ask for together, an engine over a real model says of each what it says when it has nothing else.

Random requests with three and more of all that can be asked for share an engine with few blocks, small steps, guesses,
steps in flight, every policy and a second tier. Meanwhile some are cancelled, their thinking is ended, or they move as
after the loss of a replica. The other engine computes each alone, whole and one token at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest

from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.matchers import LlguidanceMatchers
from model_svc.engine.policy import POLICIES
from model_svc.engine.request import EngineRequest
from model_svc.models.decoder import Decoder
from model_svc.runner.load import make_runner
from model_svc.runner.tier import TierOptions
from model_svc.spec.ngram import NgramProposer
from model_svc.spec.proposer import Proposer
from tests.model_svc.engine.guessers import Oracle, Parrot
from tests.model_svc.engine.oracle import Received
from tests.model_svc.random_requests import EOS, VOCAB, matchers, random_request, spelled
from wire.errors import InvalidRequestError
from wire.messages import TokenChunk, TokenLogprob, pack_ids, unpack_ids

TRIALS = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "9"))
Key = tuple[str, int]


class Said(Received):
    """What came of one choice."""

    def __init__(self) -> None:
        super().__init__(spelled)
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self.closed_at: list[int] = []

    def add(self, chunk: TokenChunk) -> None:
        super().add(chunk)
        self.logprobs += chunk.logprobs
        self.prompt_logprobs = chunk.prompt_logprobs or self.prompt_logprobs
        if chunk.closed_at >= 0:
            self.closed_at.append(chunk.closed_at)

    def rewind(self, num_tokens: int) -> list[int]:
        ids = super().rewind(num_tokens)
        self.closed_at = [at for at in self.closed_at if at <= len(ids)]
        self.prompt_logprobs = ()
        return ids


class Company:
    """An engine, many requests, and what befalls them."""

    def __init__(self, seed: int, model: Decoder, compiles: LlguidanceMatchers) -> None:
        self.rng = rng = Random(seed)
        self.model, self.compiles = model, compiles
        self.requests: dict[str, EngineRequest] = {}
        self.said: dict[Key, Said] = {}
        self.cancelled: set[Key] = set()
        self.known: list[list[int]] = []
        sizes: dict[str, Any] = {
            "num_blocks": rng.choice([32, 34, 40, 64]),
            "max_num_seqs": rng.choice([1, 2, 4, 8]),
            "max_num_batched_tokens": rng.choice([1, 3, 5, 8, 16, 64]),
            "max_drafts": rng.choice([4, 16]),
        }
        flight: dict[str, Any] = rng.choice([{"depth": 0}, {"packed": True, "depth": rng.choice([0, 1, 2])}])
        # For few blocks, for all, or no second tier.
        tier = TierOptions(ram_bytes=Random(seed).choice([0, 20_000, 1 << 22]))
        self.runner = make_runner(model, block_size=4, **sizes, **flight, tier=tier)
        oracle = Oracle(lambda: self.known, VOCAB, errs=rng.choice([0, 3]))
        proposer: Proposer | None = rng.choice([None, NgramProposer(), Parrot(52, 0, 1), oracle])
        drafter = None
        if proposer is not None:
            adaptive = rng.random() < 0.3
            drafter = Drafter(
                proposer, max_length=rng.choice([1, 3, 8]), max_drafts=sizes["max_drafts"], adaptive=adaptive
            )
        ticks = count()
        self.engine = Engine(
            self.runner, token_bytes=spelled, eos_token_ids=(EOS,), matchers=compiles, drafter=drafter,
            policy=rng.choice(sorted(POLICIES)), inter_token_ms=10.0, patience_s=rng.choice([5.0, 100.0, 1e9]),
            clock=lambda: float(next(ticks)),
        )  # fmt: skip

    def alone(self, request: EngineRequest, closed_at: dict[int, tuple[int, ...]]) -> list[Said]:
        """Answer a request that has an engine to itself."""
        runner = make_runner(self.model, block_size=4, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=256)
        engine = Engine(runner, token_bytes=spelled, eos_token_ids=(EOS,), matchers=self.compiles)
        said = [Said() for _ in range(request.sampling.n)]
        engine.add(msgspec.structs.replace(request, attempt=0, checkpoint={}, closed_at=closed_at))
        while engine.has_work:
            for chunk in engine.step():
                said[chunk.choice].add(chunk)
            engine.events()
        return said

    def run(self, num_requests: int) -> None:
        """Serve so many requests to their end."""
        events = [self.step, self.cancel, self.end_reasoning, self.move]
        made = 0
        for _ in range(6000):
            if made < num_requests and self.rng.random() < 0.25:
                self.arrive(f"r{made}")
                made += 1
            else:
                self.rng.choices(events, (50, 1, 9, 4))[0]()
            self.engine.check_invariants()
            if made == num_requests and not self.engine.has_work:
                return
        raise AssertionError("no end: a deadlock or a livelock")

    def arrive(self, name: str) -> None:
        request = random_request(self.rng, name)
        try:
            self.engine.add(request)
        except InvalidRequestError:
            return
        self.requests[name] = request
        prompt = unpack_ids(request.prompt.token_ids)
        for choice, said in enumerate(self.alone(request, {})):
            self.said[name, choice] = Said()
            self.known.append([*prompt, *said.answer.token_ids])

    def step(self) -> None:
        if not self.engine.has_work:
            return
        for chunk in self.engine.step():
            assert chunk.attempt == self.requests[chunk.request_id].attempt
            self.said[chunk.request_id, chunk.choice].add(chunk)
        self.engine.events()

    def one_that_runs(self) -> EngineRequest | None:
        running = sorted({name for (name, _), said in self.said.items() if not said.answer.finish_reason})
        return self.requests[self.rng.choice(running)] if running else None

    def cancel(self) -> None:
        request = self.one_that_runs()
        if request is not None:
            choice = self.rng.choice([None, *range(request.sampling.n)])
            self.cancelled |= {key for key in self.keys(request) if choice in (None, key[1])}
            self.engine.cancel(request.request_id, choice)

    def end_reasoning(self) -> None:
        request = self.one_that_runs()
        if request is not None:
            self.engine.end_reasoning(request.request_id)

    def move(self) -> None:
        """Go on with a request from what its edge has, as after the loss of a replica."""
        old = self.one_that_runs()
        if old is None or old.sampling.logprobs is not None:
            return
        keys = self.keys(old)
        if any(self.said[key].answer.finish_reason for key in keys) or self.cancelled & set(keys):
            return
        kept = {choice: self.said[name, choice].rewind(self.rng.randrange(4)) for name, choice in keys}
        self.requests[old.request_id] = moved = msgspec.structs.replace(
            old,
            attempt=old.attempt + 1,
            checkpoint={choice: pack_ids(ids) for choice, ids in kept.items()},
            closed_at={key[1]: tuple(self.said[key].closed_at) for key in keys},
        )
        self.engine.add(moved)

    def keys(self, request: EngineRequest) -> list[Key]:
        return [(request.request_id, choice) for choice in range(request.sampling.n)]

    def check(self) -> None:
        """Compare every answer with that of the request alone."""
        load = self.engine.load()
        assert (load.num_running, load.num_waiting, load.num_free_blocks) == (0, 0, self.runner.info.num_blocks)
        for request in self.requests.values():
            keys = self.keys(request)
            alone = self.alone(request, {key[1]: tuple(self.said[key].closed_at) for key in keys})
            for key in keys:
                _compare(self.said[key], alone[key[1]], cancelled=key in self.cancelled)


def _compare(got: Said, want: Said, *, cancelled: bool) -> None:
    ids, reason = got.answer.token_ids, got.answer.finish_reason
    if reason in ("cancelled", "error"):  # rules that leave no token are met guesses earlier, in one step with others
        assert cancelled if reason == "cancelled" else reason == want.answer.finish_reason
        assert ids == want.answer.token_ids[: len(ids)]
        return
    assert (ids, reason, got.answer.phases) == (want.answer.token_ids, want.answer.finish_reason, want.answer.phases)
    assert got.answer.num_reasoning_tokens == want.answer.num_reasoning_tokens
    for ours, theirs in ((got.logprobs, want.logprobs), (got.prompt_logprobs, want.prompt_logprobs)):
        assert [entry.top_ids for entry in ours] == [entry.top_ids for entry in theirs]
        assert [entry.logprob for entry in ours] == pytest.approx([entry.logprob for entry in theirs], abs=1e-3)


@pytest.fixture(scope="module")
def compiles() -> Iterator[LlguidanceMatchers]:
    made = matchers()
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(2 * TRIALS))
def test_each_says_in_company_what_it_says_alone(seed: int, tiny_model: Decoder, compiles: LlguidanceMatchers) -> None:
    company = Company(seed, tiny_model, compiles)
    company.run(Random(seed).choice([3, 6, 10]))
    company.check()

"""Engine and runner together: whatever is cached, cut, preempted or planned ahead, a request gets its own ids."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from model_svc.engine.engine import Engine
from model_svc.engine.request import EngineRequest
from model_svc.models.decoder import Decoder
from model_svc.runner.load import make_runner
from wire import block_hash
from wire.messages import Prompt, SamplingParams, TokenChunk, pack_ids

BLOCK = 4
ROOT = block_hash.root(b"secret", model="tiny", block_size=BLOCK)


def request(name: str, ids: list[int], **sampling: object) -> EngineRequest:
    prompt = Prompt(
        token_ids=pack_ids(ids),
        num_tokens=len(ids),
        block_root=ROOT,
        block_hashes=b"".join(block_hash.chain(ROOT, ids, BLOCK)),
        block_size=BLOCK,
        max_tokens=16,
    )
    return EngineRequest(request_id=name, prompt=prompt, sampling=SamplingParams(max_tokens=16, **sampling))  # type: ignore[arg-type]


def mixed_requests() -> list[EngineRequest]:
    """Prompts that share long beginnings, of lengths on and off the block borders, sampled in every way."""
    rng = random.Random(8)
    shared = [rng.randrange(67) for _ in range(24)]
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 0.9, "seed": 5, "top_k": 8, "n": 3},
        {"temperature": 1.0, "seed": 6, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
        {"temperature": 0.7, "seed": 7, "top_p": 0.8, "min_p": 0.05},
    ]
    return [
        request(f"r{n}", shared[: rng.choice((0, 8, 24))] + [rng.randrange(67) for _ in range(1 + n)], **kinds[n % 5])
        for n in range(15)
    ]


Answers = dict[tuple[str, int], list[int]]


def run(engine: Engine, requests: list[EngineRequest], *, at_once: bool) -> Answers:
    """Answer all requests, together or one after another."""
    answers: Answers = {}

    def take(chunks: list[TokenChunk]) -> None:
        for chunk in chunks:
            answer = answers.setdefault((chunk.request_id, chunk.choice), [])
            assert chunk.index == len(answer)
            answer += chunk.token_ids
            assert chunk.finish_reason in (None, "length")

    for item in requests:
        engine.add(item)
        if not at_once:
            while engine.has_work:
                take(engine.step())
                engine.events()
    while engine.has_work:
        take(engine.step())
        engine.events()
        engine.check_invariants()
    return answers


def fresh_engine(model: Decoder, **options: Any) -> Engine:
    settings: dict[str, Any] = {
        "num_blocks": 200,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": BLOCK,
    } | options
    return Engine(make_runner(model, **settings), token_bytes=lambda _: b"x")


def each_alone(model: Decoder) -> Answers:
    """Answer each of the mixed requests in an engine of its own."""
    found: Answers = {}
    for item in mixed_requests():
        found |= run(fresh_engine(model), [item], at_once=True)
    return found


@pytest.fixture(scope="module")
def alone(tiny_model: Decoder) -> Answers:
    found = each_alone(tiny_model)
    assert len(found) == 21
    assert all(len(array("i", ids)) == 16 for ids in found.values())
    return found


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 22}, {"max_num_seqs": 2}],
    ids=["roomy", "small chunks", "few blocks: preemption", "few slots"],
)
def test_requests_served_together_get_what_they_get_alone(
    tiny_model: Decoder, alone: Answers, options: dict[str, int], depth: int
) -> None:
    engine = fresh_engine(tiny_model, depth=depth, **options)
    assert run(engine, mixed_requests(), at_once=True) == alone
    load = engine.load()
    assert load.num_running == load.num_waiting == 0
    if "num_blocks" in options:
        assert load.num_preemptions > 0


def test_prompts_found_in_the_prefix_cache_give_the_same_answers(tiny_model: Decoder, alone: Answers) -> None:
    engine = fresh_engine(tiny_model)
    run(engine, mixed_requests(), at_once=False)
    again = [
        EngineRequest(request_id=f"again-{item.request_id}", prompt=item.prompt, sampling=item.sampling)
        for item in mixed_requests()
        if item.sampling.temperature == 0 or item.sampling.seed is not None
    ]
    answers = run(engine, again, at_once=False)
    assert {(name.removeprefix("again-"), choice): ids for (name, choice), ids in answers.items()} == alone

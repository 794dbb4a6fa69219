"""A model on two processes, driven as an engine drives any runner, answers as one process does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.layers.group import Group
from model_svc.parallel.load import load_runner
from model_svc.runner.load import load_runner as load_alone
from model_svc.spec.ngram import PROPOSERS
from tests.model_svc.saved_llama import save_tiny
from tests.model_svc.soon_copied import soon_copied
from tests.model_svc.tiny import VOCAB
from wire import block_hash
from wire.messages import Prompt, SamplingParams, pack_ids

__all__ = ["soon_copied"]

BLOCK = 4
ROOT = block_hash.root(b"secret", model="tiny", block_size=BLOCK)
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": BLOCK,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_drafts": 8,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def uneven(path: Path, *, group: Group, num_blocks: int, **options: Any) -> Runner:
    """Load a rank, the last of which has the least memory."""
    return load_alone(path, group=group, num_blocks=num_blocks + 8 * (group.size - 1 - group.rank), **options)


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[Runner]:
    factory = "tests.model_svc.parallel.test_processes:uneven"
    made = load_runner(
        directory, tensor_parallel=2, factory=factory, num_blocks=40, kv_ram_bytes=1 << 20, **OPTIONS
    )  # each rank keeps its part of what leaves the pool
    yield made
    made.close()


def answers(runner: Runner) -> dict[str, list[int]]:
    """Ids of mixed requests, all twice: prompts in chunks, prefix hits, evictions, guesses, penalties, draws."""
    drafter, max_drafts = None, runner.info.max_drafts
    if max_drafts:
        drafter = Drafter(PROPOSERS["ngram"](), max_length=4, max_drafts=max_drafts)
    engine = Engine(runner, token_bytes=lambda _: b"x", drafter=drafter)
    samplings = [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"temperature": 0.0, "logit_bias": {3: 2.0}, "logprobs": 2},
        {"temperature": 1.0, "seed": 4, "top_p": 0.9},
    ]
    size = runner.info.block_size
    found: dict[str, list[int]] = {}
    for turn in range(2):
        draw = random.Random(8)
        shared = [draw.randrange(VOCAB) for _ in range(24)]
        for n in range(8):
            ids = shared + [draw.randrange(VOCAB)] * (1 + n)
            prompt = Prompt(
                token_ids=pack_ids(ids), num_tokens=len(ids), block_root=ROOT, block_size=size, max_tokens=16,
                block_hashes=b"".join(block_hash.chain(ROOT, ids, size)),
            )  # fmt: skip
            sampling = SamplingParams(max_tokens=16, **samplings[n % 4])  # type: ignore[arg-type]
            engine.add(EngineRequest(request_id=f"{turn}.{n}", prompt=prompt, sampling=sampling))
        while engine.has_work:
            for chunk in engine.step():
                assert chunk.finish_reason in (None, "length")
                found.setdefault(chunk.request_id, []).extend(chunk.token_ids)
            engine.events()
    assert bool(engine.load().num_loaded_blocks) == bool(runner.info.num_tier_blocks)
    return found


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, list[int]]:
    runner = load_alone(directory, **OPTIONS, num_blocks=40)
    found = answers(runner)
    runner.close()
    assert all(len(ids) == 16 for ids in found.values())
    return found


def test_several_processes_answer_as_one(runner: Runner, alone: dict[str, list[int]]) -> None:
    assert runner.info.num_blocks == 40  # as many as the rank with the least has room for
    assert answers(runner) == alone

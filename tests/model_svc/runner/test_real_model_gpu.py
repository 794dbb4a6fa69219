"""SmolLM2 on a GPU against the float32 exact mode of the CPU: equal ids, or ids that part where two tokens tie.

The differences are printed (`-s`): where the ids part, and how much better the CPU's token was there than its second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer

from model_svc.engine.plan import SampledToken
from model_svc.runner.load import load_runner
from tests.model_svc.paged import RunnerDriver, Tracked
from tests.model_svc.runner.test_real_model import PROMPTS
from wire.messages import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NUM_TOKENS = 64
SIZES: dict[str, Any] = {"num_blocks": 400, "max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 2048}


class Parting(NamedTuple):
    """Where two answers part, and the exact mode's gap between its best two tokens there (in log-probability)."""

    prompt: str
    at: int
    gap: float


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))
    return {name: tokenizer.encode(text).ids[:300] for name, text in PROMPTS.items()}


def answers(path: Path, prompts: dict[str, list[int]], **options: Any) -> dict[str, list[SampledToken]]:
    runner = load_runner(path, **SIZES, **options)
    sampling = SamplingParams(temperature=0.0, logprobs=2)
    sequences = [Tracked(slot, list(ids), sampling=sampling) for slot, ids in enumerate(prompts.values())]
    found = RunnerDriver(runner).generate(sequences, NUM_TOKENS, chunk=80)
    runner.close()
    return {name: found[slot] for slot, name in enumerate(prompts)}


@pytest.fixture(scope="module")
def exact(smollm2_path: Path, prompts: dict[str, list[int]]) -> dict[str, list[SampledToken]]:
    return answers(smollm2_path, prompts, device="cpu", dtype="float32", threads=8)


def partings(exact: dict[str, list[SampledToken]], found: dict[str, list[SampledToken]]) -> list[Parting]:
    parts = []
    for name, tokens in exact.items():
        pairs = zip(tokens, found[name], strict=True)
        at = next((n for n, (ours, theirs) in enumerate(pairs) if ours.token_id != theirs.token_id), None)
        if at is not None:
            first, second = tokens[at].top_logprobs[:2]
            parts.append(Parting(name, at, first - second))
    sys.stdout.write(f"{len(exact)} answers of {NUM_TOKENS} tokens part {len(parts)} times: {parts}\n")
    return parts


def test_in_float32_the_ids_are_those_of_the_cpu(
    smollm2_path: Path, prompts: dict[str, list[int]], exact: dict[str, list[SampledToken]]
) -> None:
    found = partings(exact, answers(smollm2_path, prompts, device="cuda", dtype="float32"))
    assert all(parting.gap < 1e-3 for parting in found)


def test_in_bfloat16_they_part_only_where_two_tokens_nearly_tie(
    smollm2_path: Path, prompts: dict[str, list[int]], exact: dict[str, list[SampledToken]]
) -> None:
    found = partings(exact, answers(smollm2_path, prompts, device="cuda", dtype="bfloat16"))
    assert all(parting.gap < 0.5 for parting in found)  # logits near 20 are 1/16 apart in bfloat16

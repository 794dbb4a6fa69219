"""Grammars over real runners: masks that come while their step is computed draw what masks known before it do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from model_svc.engine.engine import Engine
from model_svc.engine.matchers import LlguidanceMatchers
from model_svc.models.decoder import Decoder
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.load import make_runner
from tests.model_svc.runner.test_with_engine import request
from tests.model_svc.tiny import tiny_llama
from wire.grammar import grammar_tokenizer
from wire.messages import Grammar
from wire.vocabulary import Vocabulary

EOS = 66
PATTERN = "([A-F]{2}HELLO[a-c]?){1,2}"
KINDS: list[dict[str, Any]] = [
    {"grammar": Grammar(kind="regex", source=PATTERN), "temperature": 1.0},
    {"temperature": 1.0},
    {"grammar": Grammar(kind="regex", source=PATTERN), "temperature": 0.0, "logprobs": 2},
    {"grammar": Grammar(kind="regex", source="[A-Z]{11}"), "temperature": 0.8, "frequency_penalty": 0.5},
    {"temperature": 0.0},
]


def spelled(token_id: int) -> bytes:
    """Ids are the characters from "!" on."""
    return bytes([33 + token_id]) if token_id < EOS else b""


@pytest.fixture(scope="module")
def matchers() -> Iterator[LlguidanceMatchers]:
    vocabulary = Vocabulary([spelled(n) for n in range(67)], {"<eos>": EOS})
    made = LlguidanceMatchers(lambda: grammar_tokenizer(vocabulary, [EOS], 67))
    yield made
    made.close()


def answers(model: Decoder, matchers: LlguidanceMatchers, **options: Any) -> dict[str, tuple[list[int], list[float]]]:
    runner = make_runner(model, num_blocks=200, max_num_seqs=8, max_num_batched_tokens=64, block_size=4, **options)
    engine = Engine(runner, token_bytes=spelled, eos_token_ids=(EOS,), matchers=matchers)
    found: dict[str, tuple[list[int], list[float]]] = {}
    for n, kind in enumerate(KINDS):
        engine.add(request(f"r{n}", [3, 9, 4, n, 11], seed=n, **kind))
        found[f"r{n}"] = ([], [])
    masked = counted(runner) if isinstance(runner, GpuRunner) and runner.info.depth else [True]
    while engine.has_work:
        for chunk in engine.step():
            found[chunk.request_id][0].extend(chunk.token_ids)
            found[chunk.request_id][1].extend(round(entry.logprob, 4) for entry in chunk.logprobs)
        engine.events()
    assert any(masked)
    return found


def counted(runner: GpuRunner) -> list[bool]:
    """Note for each late mask whether it allowed only some tokens."""
    masks: list[bool] = []
    given = runner.mask

    def mask(handle: Any, by_slot: Any) -> None:
        masks.extend(map(bool, by_slot.values()))
        given(handle, by_slot)

    runner.mask = mask  # type: ignore[method-assign, assignment]
    return masks


def test_masks_that_come_late_draw_the_same(tiny_model: Decoder, matchers: LlguidanceMatchers) -> None:
    known = answers(tiny_model, matchers)
    late = answers(tiny_model, matchers, packed=True, depth=1)
    assert late == known
    for n, kind in enumerate(KINDS):
        text = b"".join(map(spelled, known[f"r{n}"][0])).decode()
        grammar = kind.get("grammar")
        assert grammar is None or re.fullmatch(grammar.source, text) or len(text) == 16, text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_masks_that_come_late_draw_the_same_on_a_gpu(matchers: LlguidanceMatchers) -> None:
    known = answers(tiny_llama("cuda"), matchers, dtype=torch.float32, depth=0)
    assert answers(tiny_llama("cuda"), matchers, dtype=torch.float32, depth=1) == known

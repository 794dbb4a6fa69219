"""Models whose cache holds latents: everything that a cache does elsewhere it does with them, in less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.float8_kv import DTYPE
from kernels.native.library import built
from model_svc.models.decoder import Decoder
from model_svc.runner.kv_transfer import KvTransfer
from model_svc.runner.load import make_runner
from model_svc.runner.runner import TorchRunner
from model_svc.runner.tier import TierOptions
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids
from tests.model_svc.runner.test_drafts import answers_of, engine_of, oracle, requests
from tests.model_svc.runner.test_second_tier import MIB, SIZES, said
from tests.model_svc.runner.test_second_tier import answers as conversations
from tests.model_svc.runner.test_with_engine import BLOCK, Answers, each_alone, fresh_engine, mixed_requests, run
from tests.model_svc.soon_copied import soon_copied
from tests.model_svc.tiny import LATENTS, tiny_llama

__all__ = ["soon_copied"]

LINE = LATENTS["kv_lora_rank"] + LATENTS["qk_rope_head_dim"]
WAYS: dict[str, dict[str, Any]] = {"exact": {}, "as on a GPU": {"packed": True, "depth": 1}}


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_llama(**LATENTS)


@pytest.fixture(scope="module")
def alone(model: Decoder) -> Answers:
    found = each_alone(model)
    assert len({tuple(ids) for ids in found.values()}) > 15
    return found


@pytest.mark.parametrize(
    "options", [{"max_num_batched_tokens": 8}, {"num_blocks": 22}], ids=["small chunks", "few blocks: preemption"]
)
@pytest.mark.parametrize("way", WAYS)
def test_requests_served_together_get_what_they_get_alone(
    model: Decoder, alone: Answers, way: str, options: dict[str, int]
) -> None:
    engine = fresh_engine(model, **WAYS[way], **options)
    assert run(engine, mixed_requests(), at_once=True) == alone
    if "num_blocks" in options:
        assert engine.load().num_preemptions > 0


def test_prompts_found_in_the_prefix_cache_give_the_same_answers(model: Decoder, alone: Answers) -> None:
    engine, some = fresh_engine(model), mixed_requests()[:6]
    answers = run(engine, some, at_once=False)
    assert answers == {key: alone[key] for key in answers}
    assert engine.load().num_prefilled_tokens < sum(item.prompt.num_tokens for item in some)


def test_a_token_takes_a_line_a_layer_whatever_the_heads(model: Decoder) -> None:
    info = make_runner(model, kv_memory_bytes=64 * BLOCK * 2 * LINE * 4, block_size=BLOCK, max_num_seqs=8).info
    assert info.kv_bytes_per_token == 2 * LINE * 4
    assert info.num_blocks == 64
    assert info.kv is not None
    assert info.kv.shapes == ((1, LINE), (1, LINE))
    assert info.kv.block_bytes == BLOCK * info.kv_bytes_per_token


@pytest.mark.parametrize("errs", [0, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_guesses_are_checked_and_change_nothing(model: Decoder, packed: bool, errs: int) -> None:
    want = answers_of(engine_of(model, None), requests())
    engine = engine_of(model, oracle(want, errs), packed=packed)
    assert answers_of(engine, requests()) == want
    assert engine.load().num_accepted_tokens > 20


def test_latents_that_were_evicted_come_back_from_the_second_tier(model: Decoder) -> None:
    runner = make_runner(model, **SIZES, tier=TierOptions(ram_bytes=MIB))
    found, engine = conversations(runner)
    assert engine.load().num_loaded_blocks >= 4 * 8
    for n in range(4):
        assert said(found[n])[0] == said(found[4 + n])[0]
        assert found[4 + n][0].num_cached_tokens == 40
    runner.close()


def test_blocks_of_latents_move_to_another_replica(model: Decoder) -> None:
    runners = [make_runner(model, num_blocks=9, block_size=BLOCK, max_num_seqs=2) for _ in range(2)]
    caches = []
    for runner in runners:
        assert isinstance(runner, TorchRunner)
        caches.append(runner._cache)
    (source, target), form = caches, runners[0].info.kv
    assert form is not None
    assert form.difference(runners[1].info.kv or form) == ""
    for (latents,) in source.paged:
        latents.normal_()
    content = memoryview(bytearray(2 * form.block_bytes))
    KvTransfer(source).read([5, 2], content)
    KvTransfer(target).write([0, 3], content, [0, 1], 2)
    for (ours,), (theirs,) in zip(source.paged, target.paged, strict=True):
        assert torch.equal(ours[[5, 2]], theirs[[0, 3]])


def test_a_cache_of_8_bits_says_the_same_by_both_runners_and_alone(model: Decoder) -> None:
    def sequences() -> list[Tracked]:
        return [Tracked(slot, [5, 9, 14, 3, 60, 22, 41][: 3 + slot]) for slot in range(4)]

    drawn = []
    for packed in (False, True):
        runner = make_runner(model, kv_dtype=DTYPE, num_blocks=64, block_size=4, max_num_seqs=8, packed=packed)
        assert runner.info.kv_bytes_per_token == 2 * LINE
        drawn.append(token_ids(RunnerDriver(runner).generate(sequences(), 8, chunk=5)))
        runner.close()
    assert drawn[0] == drawn[1]


@pytest.mark.skipif(not built(), reason="native kernels are not built")
def test_native_kernels_attend_over_latents_call_by_call(model: Decoder, alone: Answers) -> None:
    greedy = [item for item in mixed_requests() if item.sampling.temperature == 0]
    answers = run(fresh_engine(model, native_kernels=True), greedy, at_once=True)
    assert answers == {key: alone[key] for key in answers}
    assert len(answers) == 3


@pytest.mark.gpu
def test_recorded_steps_on_a_gpu_give_the_answers_of_eager_ones() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = tiny_llama("cuda", **LATENTS)
    greedy = [item for item in mixed_requests() if item.sampling.temperature == 0]
    eager = run(fresh_engine(on_gpu, packed=False, depth=0), greedy, at_once=False)
    assert run(fresh_engine(on_gpu), greedy, at_once=True) == eager

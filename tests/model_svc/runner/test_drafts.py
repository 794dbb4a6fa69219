"""Guesses, right and wrong, on every runner: answers are those of decoding one by one, however they are drawn."""

from __future__ import annotations

from array import array
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given, settings

from kernels.native.library import built
from kernels.native.tape import Arena, Tape
from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.plan import SequenceStep, StepPlan
from model_svc.engine.request import EngineRequest
from model_svc.layers.step import StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.cpu_runner import CpuRunner
from model_svc.runner.decode_step import TapedStep, own_inputs
from model_svc.runner.load import make_runner
from model_svc.runner.slots import Slots
from model_svc.spec.ngram import NgramProposer
from model_svc.spec.proposer import Proposer
from tests.model_svc.engine.guessers import Oracle, Parrot
from tests.model_svc.no_waiting import no_waiting
from tests.model_svc.runner.test_with_engine import BLOCK, Answers, request, run
from tests.model_svc.tiny import tiny_llama
from wire.messages import pack_ids, unpack_ids

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 4},
    {"temperature": 0.9, "seed": 5, "top_k": 8, "top_p": 0.9},
    {"temperature": 1.0, "seed": 6, "frequency_penalty": 0.9, "presence_penalty": 0.3, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 1.5},
    {"temperature": 1.0, "seed": 7, "logit_bias": {3: 4.0}, "logprobs": 2},
    {"temperature": 1.0, "seed": 8, "allowed_token_ids": (1, 2, 3, 5, 8, 13)},
    {"temperature": 1.0, "seed": 9, "min_tokens": 6, "stop_token_ids": tuple(range(0, 67, 3))},
]
KINDS: list[dict[str, Any]] = [{}, {"packed": True}] + ([{"native_kernels": True}] if built() else [])


def requests() -> list[EngineRequest]:
    return [request(f"r{n}", [5, 9, 14, 3 + n, 60, 22][: 2 + n], **fields) for n, fields in enumerate(SAMPLINGS)]


def engine_of(model: Decoder, proposer: Proposer | None, length: int = 4, **options: Any) -> Engine:
    sizes = {
        "num_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": BLOCK, "max_drafts": 40,
    }  # fmt: skip
    runner = make_runner(model, **(sizes | options))
    drafter = None
    if proposer is not None:
        drafter = Drafter(proposer, max_length=length, max_drafts=runner.info.max_drafts, adaptive=False)
    return Engine(runner, token_bytes=lambda _: b"x", drafter=drafter)


def answers_of(engine: Engine, asked: list[EngineRequest]) -> Answers:
    answers: Answers = {}
    for item in asked:
        engine.add(item)
    while engine.has_work:
        for chunk in engine.step():
            answers.setdefault((chunk.request_id, chunk.choice), []).extend(chunk.token_ids)
            assert chunk.finish_reason != "error"
        engine.events()
        engine.check_invariants()
    return answers


@pytest.fixture(scope="module")
def truth(tiny_model: Decoder) -> dict[bool, Answers]:
    """What is said without guesses, by native kernels and by torch."""
    kinds = {bool(kind.get("native_kernels")): kind for kind in KINDS if "packed" not in kind}
    return {native: answers_of(engine_of(tiny_model, None, **kind), requests()) for native, kind in kinds.items()}


def oracle(answers: Answers, errs: int) -> Oracle:
    known = [[*unpack_ids(item.prompt.token_ids), *answers[item.request_id, 0]] for item in requests()]
    return Oracle(lambda: known, 67, errs=errs)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", KINDS, ids=["eager", "packed", "native"][: len(KINDS)])
@pytest.mark.parametrize("errs", [0, 3])
def test_answers_are_the_same_with_right_and_with_wrong_guesses(
    tiny_model: Decoder, truth: dict[bool, Answers], kind: dict[str, Any], errs: int, depth: int
) -> None:
    if kind.get("native_kernels") and depth:
        pytest.skip("the CPU runner has no step in flight")
    want = truth[bool(kind.get("native_kernels"))]
    engine = engine_of(tiny_model, oracle(want, errs), depth=depth, **kind)
    assert answers_of(engine, requests()) == want
    load = engine.load()
    assert load.num_accepted_tokens > (60 if not errs else 20)
    assert (load.num_draft_tokens > load.num_accepted_tokens) == bool(errs)


@pytest.mark.parametrize("kind", KINDS, ids=["eager", "packed", "native"][: len(KINDS)])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_word_that_is_forbidden_at_one_draw_is_allowed_behind_the_next_guess(
    tiny_model: Decoder, kind: dict[str, Any], length: int
) -> None:
    """7 is wanted above all, and may not follow itself: each other draw has a rule, those between have none."""
    asked = request("r", [5, 9, 14], temperature=0.0, logit_bias={7: 100.0})
    asked = msgspec.structs.replace(asked, prompt=msgspec.structs.replace(asked.prompt, bad_word_ids=((7, 7),)))
    said = answers_of(engine_of(tiny_model, None, **kind), [asked])["r", 0]
    assert said[::2] == [7] * 8 and 7 not in said[1::2]
    right = Oracle(lambda: [[5, 9, 14, *said]], 67)
    engine = engine_of(tiny_model, right, length=length, **kind)
    assert answers_of(engine, [asked])["r", 0] == said
    assert engine.load().num_accepted_tokens > 4


@pytest.mark.parametrize("kind", KINDS, ids=["eager", "packed", "native"][: len(KINDS)])
@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 7}, {"num_blocks": 26}, {"max_num_seqs": 1}])
def test_small_steps_few_blocks_and_one_slot_change_nothing(
    tiny_model: Decoder, truth: dict[bool, Answers], kind: dict[str, Any], options: dict[str, int]
) -> None:
    want = truth[bool(kind.get("native_kernels"))]
    engine = engine_of(tiny_model, oracle(want, 3), length=6, **kind, **options)
    assert answers_of(engine, requests()) == want
    assert ("num_blocks" in options) == (engine.load().num_preemptions > 0)


@pytest.mark.skipif(not built(), reason="native kernels are not built")
def test_steps_with_guesses_are_taped_by_size(tiny_model: Decoder, truth: dict[bool, Answers]) -> None:
    engine = engine_of(tiny_model, oracle(truth[True], 5), length=2, native_kernels=True, max_num_seqs=2)
    for _ in range(2):
        assert answers_of(engine, requests()) == truth[True]
    runner = engine._runner
    assert isinstance(runner, CpuRunner)
    taped = {size for size, tape in runner._tapes.items() if tape is not None}
    assert sum(guesses for _, guesses, _ in taped) > 2


def test_a_taped_step_forgets_the_sequences_of_the_step_before() -> None:
    slots = Slots(4, 67, 1, torch.device("cpu"))
    slots.num_blocks |= dict.fromkeys(range(4), 1)

    def plan(*lengths: int) -> StepPlan:
        items = (
            SequenceStep(slot=n, start=3, num_tokens=length, token_ids=pack_ids([9] * length), num_drafts=length - 1)
            for n, length in enumerate(lengths)
        )
        return StepPlan(step=0, sequences=tuple(items))

    def starts_after(*plans: StepPlan) -> list[int]:
        batch = StepBatch(
            positions=torch.zeros(6, dtype=torch.int64),
            slot_mapping=torch.zeros(6, dtype=torch.int64),
            block_tables=torch.zeros(2, 1, dtype=torch.int32),
            query_start=torch.tensor([0, 3, 6], dtype=torch.int32),
            context_lens=torch.zeros(2, dtype=torch.int32),
            slots=torch.zeros(2, dtype=torch.int32),
            max_query_len=3,
            max_context_len=16,
        )
        ids, own = own_inputs(torch.zeros(6, dtype=torch.int32), batch, 1, 16)
        taped = TapedStep(ids, ids, own, Tape(Arena()), lambda: torch.zeros(6, 67))
        for each in plans:
            taped.fill(each, slots, 16)
        return own.query_start.tolist()

    assert starts_after(plan(1, 1, 2, 2), plan(3, 3)) == starts_after(plan(3, 3))


@settings(max_examples=12, deadline=None)
@given(
    length=st.integers(1, 12),
    says=st.lists(st.integers(0, 66), min_size=1, max_size=5),
    budget=st.integers(3, 40),
    num_blocks=st.integers(24, 60),
    kind=st.sampled_from(KINDS),
)
def test_nonsense_changes_nothing(
    tiny_model: Decoder, truth: dict[bool, Answers], length: int, says: list[int], budget: int, num_blocks: int,
    kind: dict[str, Any],
) -> None:  # fmt: skip
    engine = engine_of(tiny_model, Parrot(*says), length, max_num_batched_tokens=budget, num_blocks=num_blocks, **kind)
    assert answers_of(engine, requests()) == truth[bool(kind.get("native_kernels"))]


def test_a_repetitive_answer_needs_fewer_steps(tiny_model: Decoder) -> None:
    asked = [request("r", [5, 9] * 8, temperature=0.0, allowed_token_ids=(5, 9))]
    plain = run(engine_of(tiny_model, None), asked, at_once=True)
    engine = engine_of(tiny_model, NgramProposer())
    assert run(engine, asked, at_once=True) == plain
    assert engine.load().num_accepted_tokens >= 4
    assert len(array("i", plain["r", 0])) == 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("errs", [0, 3])
@pytest.mark.parametrize("options", [{}, {"num_blocks": 26}], ids=["roomy", "few blocks"])
def test_a_gpu_checks_guesses_without_changing_an_id(
    truth: dict[bool, Answers], options: dict[str, int], errs: int
) -> None:
    model = tiny_llama("cuda")
    plain = answers_of(engine_of(model, None, **options), requests())
    assert plain == truth[False]
    engine = engine_of(model, oracle(plain, errs), **options)
    assert answers_of(engine, requests()) == plain
    assert engine.load().num_accepted_tokens > 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_step_with_guesses_waits_for_nothing_in_submit(truth: dict[bool, Answers]) -> None:
    engine = engine_of(tiny_llama("cuda"), oracle(truth[False], 3))
    answers_of(engine, requests())  # makes the tables of penalties, compiles
    runner, submit = engine._runner, engine._runner.submit

    def watched(plan: StepPlan) -> Any:
        with no_waiting():
            return submit(plan)

    runner.submit = watched  # type: ignore[method-assign]
    assert answers_of(engine, requests()) == truth[False]

"""Models that keep states beside attention: a sequence's state is its own, and a snapshot holds what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.native.library import built
from model_svc.engine.engine import Engine
from model_svc.engine.plan import RunnerInfo
from model_svc.models.decoder import Decoder
from model_svc.parallel.load import load_runner as load_parallel
from model_svc.runner.cpu_runner import CpuRunner
from model_svc.runner.load import make_runner
from model_svc.runner.precision import RunnerConfigError
from model_svc.runner.state_pool import row_bytes
from model_svc.runner.state_room import states_bytes, with_states
from model_svc.runner.tier import TierOptions
from tests.model_svc.runner.test_with_engine import (
    BLOCK,
    Answers,
    each_alone,
    fresh_engine,
    mixed_requests,
    request,
    run,
)
from tests.model_svc.tiny import tiny_llama

STATES: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
}
CONVS: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_multiple_of": 16,
}
MAMBA: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "mamba_n_heads": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "shared_intermediate_size": 48,
    "num_local_experts": 0,
}
KINDS = {"gated delta nets": STATES, "short convolutions": CONVS, "mamba 2": MAMBA}
WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    "as on a GPU": {"packed": True, "depth": 1},
    "native": {"native_kernels": True},
}


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_llama(**STATES)


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def each(request: pytest.FixtureRequest) -> Decoder:
    """Return a model of each kind of states."""
    return tiny_llama(**request.param)


@pytest.fixture(scope="module")
def alone(model: Decoder) -> Answers:
    found = each_alone(model)
    assert len({tuple(ids) for ids in found.values()}) > 15
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 22}, {"max_num_seqs": 2}],
    ids=["roomy", "small chunks", "few blocks: preemption", "few slots"],
)
@pytest.mark.parametrize("way", ["exact", "as on a GPU"])
def test_requests_served_together_get_what_they_get_alone(
    model: Decoder, alone: Answers, way: str, options: dict[str, int]
) -> None:
    engine = fresh_engine(model, **WAYS[way], **options)
    assert run(engine, mixed_requests(), at_once=True) == alone
    if "num_blocks" in options:
        assert engine.load().num_preemptions > 0


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 22}])
def test_recorded_steps_on_a_gpu_give_the_answers_of_eager_ones(options: dict[str, int]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = tiny_llama("cuda", **STATES)
    greedy = [request(f"g{seed}", prompt(9 + 5 * seed, seed), temperature=0.0) for seed in range(6)]
    eager = run(fresh_engine(on_gpu, packed=False, depth=0), greedy, at_once=False)
    assert run(fresh_engine(on_gpu, **options), greedy, at_once=True) == eager


def ask(engine: Engine, name: str, ids: list[int]) -> tuple[list[int], int]:
    """Return a greedy answer's ids, and how many tokens of the prompt were cached."""
    engine.add(request(name, ids, temperature=0.0))
    answer: list[int] = []
    cached = 0
    while engine.has_work:
        for chunk in engine.step():
            answer += chunk.token_ids
            cached += chunk.num_cached_tokens  # the first one says it
        engine.events()
        engine.check_invariants()
    return answer, cached


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, 67, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_conversations_next_turn_goes_on_from_the_answers_last_full_block(each: Decoder, way: str) -> None:
    engine = fresh_engine(each, **WAYS[way])
    first = prompt(30, 1)
    answer, cached = ask(engine, "one", first)
    assert cached == 0
    turn = [*first, *answer, *prompt(5, 2)]
    again, cached = ask(engine, "two", turn)
    assert cached == (30 + 15) // BLOCK * BLOCK  # the last token was drawn and never computed
    assert again == ask(fresh_engine(each, **WAYS[way]), "new", turn)[0]


@pytest.mark.parametrize("way", WAYS)
def test_prompts_that_share_a_beginning_keep_the_state_there_once_a_second_one_has_come(
    model: Decoder, way: str
) -> None:
    engine = fresh_engine(model, **WAYS[way])
    shared = prompt(26, 3)
    cached = [ask(engine, f"r{seed}", shared + prompt(20, seed))[1] for seed in (4, 5, 6)]
    assert cached == [0, 0, 24]
    whole = shared + prompt(20, 7)
    assert ask(engine, "hit", whole)[0] == ask(fresh_engine(model, **WAYS[way]), "new", whole)[0]


def test_the_same_prompt_again_computes_what_is_behind_its_last_full_block(model: Decoder) -> None:
    engine = fresh_engine(model)
    answers = [ask(engine, f"r{n}", prompt(29, 8)) for n in range(3)]
    assert [cached for _, cached in answers] == [0, 28, 28]
    assert answers[0][0] == answers[1][0] == answers[2][0]


def test_a_state_that_is_no_number_is_not_kept(model: Decoder) -> None:
    runner = make_runner(model, num_blocks=50, block_size=BLOCK, max_num_seqs=2)
    engine = Engine(runner, token_bytes=lambda _: b"x")
    runner._cache.states._rows[:2].fill_(float("nan"))  # whoever begins, begins with zeros
    assert ask(engine, "sound", prompt(29, 8))[0] == ask(fresh_engine(model), "new", prompt(29, 8))[0]
    runner._cache.states._rows[2:].fill_(float("nan"))  # snapshots
    engine.add(request("spoilt", prompt(29, 8), temperature=0.0))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
        engine.events()
    assert [chunk.finish_reason for chunk in chunks] == ["error"]
    again, cached = ask(engine, "again", prompt(29, 8))
    assert cached == 0
    assert again == ask(fresh_engine(model), "new", prompt(29, 8))[0]


def test_what_needs_a_state_rolled_back_or_cut_is_off_or_refused_by_name(model: Decoder, tmp_path: Path) -> None:
    info = make_runner(model, num_blocks=50, block_size=BLOCK, max_num_seqs=3, max_drafts=8).info
    assert (info.max_drafts, info.kv) == (0, None)
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Qwen3NextForCausalLM"], "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8,'
        ' "num_hidden_layers": 4, "num_attention_heads": 4}'
    )
    with pytest.raises(RunnerConfigError, match="pipeline_parallel and Qwen3NextForCausalLM, which keeps states"):
        load_parallel(tmp_path, pipeline_parallel=2)
    with pytest.raises(RunnerConfigError, match="kv_ram_gib and kv_disk_gib are of no use to a model with states"):
        make_runner(model, num_blocks=50, block_size=BLOCK, tier=TierOptions(ram_bytes=1 << 20))


@pytest.mark.parametrize("kind", [CONVS, MAMBA], ids=["short convolutions", "mamba 2"])
def test_prompts_in_chunks_beside_answers_leave_states_as_they_are_left_alone(kind: dict[str, Any]) -> None:
    model, alike = tiny_llama(**kind), [request(f"g{n}", prompt(9 + 5 * n, n), temperature=0.0) for n in range(6)]
    alone: Answers = {}
    for item in alike:
        alone |= run(fresh_engine(model), [item], at_once=True)
    together = fresh_engine(model, **WAYS["as on a GPU"], max_num_batched_tokens=8)
    assert run(together, alike, at_once=True) == alone


def test_states_and_snapshots_have_half_of_the_memory_at_most(model: Decoder) -> None:
    each = row_bytes(model.state_shapes())
    assert each >= 4 * 3 * (3 * 112 + 4 * 16 * 12)
    info = make_runner(model, kv_memory_bytes=40 * each, block_size=BLOCK, max_num_seqs=64).info
    assert (info.state_bytes, info.max_num_seqs, info.num_snapshots) == (each, 9, 9)
    assert states_bytes(info) == 19 * each
    assert info.num_blocks * BLOCK * info.kv_bytes_per_token <= 21 * each
    asked = RunnerInfo(
        num_blocks=1, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=9, vocab_size=9,
        state_bytes=each,
    )  # fmt: skip
    assert with_states(asked, None).num_snapshots == 4
    with pytest.raises(RunnerConfigError, match=r"no room for states: one sequence's takes .* MiB"):
        with_states(asked, 5 * each)


@pytest.mark.skipif(not built(), reason="native kernels are not built")
def test_decode_steps_of_native_kernels_are_taped_and_say_what_others_say(each: Decoder) -> None:
    engine = fresh_engine(each, **WAYS["native"])
    taped = ask(engine, "taped", prompt(30, 1))[0]
    runner = engine._runner
    assert isinstance(runner, CpuRunner)
    assert any(tape is not None for tape in runner._tapes.values())
    assert taped == ask(fresh_engine(each), "exact", prompt(30, 1))[0]

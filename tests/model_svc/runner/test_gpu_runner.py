"""The GPU's way of running (packed steps, state in one matrix) against the eager runner; on the CPU without graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from kernels import dispatch, few_rows, several_rows
from kernels.prefill_attention import UNCUT_KEYS
from model_svc.engine.plan import SequenceStep, StepPlan
from model_svc.layers.blocks import FewRows
from model_svc.models.decoder import Decoder
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.graphs import Shapes, decode_sizes, recorded_shapes
from model_svc.runner.load import make_runner
from model_svc.runner.packed_step import StepShape, shape_of
from model_svc.runner.runner import TorchRunner
from tests.model_svc.paged import GREEDY, Dealer, RunnerDriver, Tracked, token_ids
from tests.model_svc.tiny import tiny_llama
from wire.messages import SamplingParams

PROMPTS = [[5, 9, 14, 3, 60, 22, 41], [7], list(range(11, 28)), [66, 1]]
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.9, top_k=9, top_p=0.9),
    SamplingParams(temperature=1.3, min_p=0.05),
]


@pytest.fixture
def both(tiny_model: Decoder) -> tuple[TorchRunner, GpuRunner]:
    sizes: dict[str, Any] = {"num_blocks": 96, "block_size": 4, "max_num_seqs": 8}
    made = [make_runner(tiny_model, packed=packed, **sizes) for packed in (False, True)]
    assert isinstance(made[0], TorchRunner)
    assert isinstance(made[1], GpuRunner)
    return made[0], made[1]


def generate(
    runner: Any, samplings: list[SamplingParams], *, chunk: int = 1 << 30, fed: bool = True, num_tokens: int = 20
) -> dict[int, Any]:
    sequences = [
        Tracked(slot * 2 + 1, list(ids), sampling=sampling, seed=slot)
        for slot, (ids, sampling) in enumerate(zip(PROMPTS, samplings, strict=True))
    ]
    return RunnerDriver(runner).generate(sequences, num_tokens, chunk=chunk, fed=fed)


def counted(function: Callable[..., Any], calls: list[None]) -> Callable[..., Any]:
    """Return `function`, noting each call."""

    def call(*args: Any, **named: Any) -> Any:
        calls.append(None)
        return function(*args, **named)

    return call


@pytest.mark.parametrize("chunk", [3, 1 << 30])
@pytest.mark.parametrize("fed", [False, True])
def test_mixed_batches_draw_what_the_eager_runner_draws(
    both: tuple[TorchRunner, GpuRunner], chunk: int, fed: bool
) -> None:
    eager, packed = (token_ids(generate(runner, SAMPLINGS, chunk=chunk, fed=fed)) for runner in both)
    assert packed == eager


def test_fused_kernels_draw_what_the_eager_runner_draws(
    both: tuple[TorchRunner, GpuRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = token_ids(generate(both[0], [GREEDY] * 4, num_tokens=3))
    monkeypatch.setattr(few_rows, "fits", lambda _, num_rows: num_rows <= few_rows.MAX_ROWS)
    fused: list[Any] = []
    monkeypatch.setattr(FewRows, "__call__", counted(FewRows.__call__, fused))
    norms: list[None] = []
    sizes = [(n,) for n in range(2, few_rows.MAX_ROWS + 1)]
    kernel = several_rows._norm_kernel
    monkeypatch.setattr(several_rows, "_norm_kernel", {n: counted(kernel[n], norms) for n in sizes})
    with dispatch.forced("triton"), np.errstate(all="ignore"):
        assert token_ids(generate(both[1], [GREEDY] * 4, num_tokens=3)) == eager
    assert len(fused) == 2 * 3  # layers, steps; the prompts are 28 tokens
    assert len(norms) == 3  # the first of each step; products begin the others


@pytest.mark.parametrize("depth", [1, 5])
def test_steps_in_flight_keep_their_tokens_however_many_they_are(tiny_model: Decoder, depth: int) -> None:
    runner = make_runner(tiny_model, packed=True, depth=depth, num_blocks=96, block_size=4, max_num_seqs=8)
    assert isinstance(runner, GpuRunner)
    dealer, seq = Dealer(96, 4), Tracked(3, list(PROMPTS[0]))
    handles = []
    for n in range(depth + 1):
        share = dealer.share(seq, 1 if n else len(seq.ids), fed=n > 0, sample=True)
        handles.append(runner.submit(StepPlan(step=n, sequences=(msgspec.structs.replace(share, forced_id=20 + n),))))
    drawn = [runner.collect(handle).tokens[0].token_id for handle in handles]
    assert drawn == [20 + n for n in range(depth + 1)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("depth", [1, 5])
def test_steps_that_draw_plainly_leave_their_tokens_apart_also_when_nobody_reads_them(device: str, depth: int) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    sizes: dict[str, Any] = {"depth": depth, "num_blocks": 96, "block_size": 4, "max_num_seqs": 8}
    runner = make_runner(tiny_llama(device), packed=True, **sizes)
    assert isinstance(runner, GpuRunner)

    def drawn(behind: int, read: range) -> list[int]:
        dealer, seq, handles, tokens = Dealer(96, 4), Tracked(3, list(PROMPTS[0]), sampling=SAMPLINGS[1]), [], []
        for n in range(24):
            share = dealer.share(seq, 1 if n else len(seq.ids), fed=n > 0, sample=True)
            handles.append(runner.submit(StepPlan(step=n, sequences=(share,))))
            if n - behind in read:
                tokens.append(runner.collect(handles[n - behind]).tokens[0].token_id)
        return tokens

    at_once = drawn(0, range(24))
    assert len(set(at_once)) > 9
    assert drawn(depth, range(24)) == at_once[: 24 - depth]
    assert drawn(depth, range(12, 24)) == at_once[12 : 24 - depth]
    runner.close()


def test_penalties_biases_and_log_probabilities_are_those_of_the_eager_runner(
    both: tuple[TorchRunner, GpuRunner],
) -> None:
    samplings = [
        GREEDY,
        SamplingParams(temperature=1.0, frequency_penalty=0.7, repetition_penalty=1.2),
        SamplingParams(temperature=1.0, logit_bias={3: 4.0}, logprobs=2),
        SamplingParams(temperature=0.0, logprobs=0),
    ]
    eager, packed = (generate(runner, samplings, chunk=3) for runner in both)
    assert token_ids(packed) == token_ids(eager)
    for ours, theirs in zip(packed[5] + packed[7], eager[5] + eager[7], strict=True):
        assert ours.top_ids == theirs.top_ids
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_a_forced_id_and_a_mask_hold_for_their_row(both: tuple[TorchRunner, GpuRunner]) -> None:
    driver = RunnerDriver(both[1])
    mask = np.zeros(3, np.int32)
    mask[0] = 1 << 7
    steps = [driver.dealer.share(Tracked(slot, list(PROMPTS[0])), 7) for slot in (2, 4)]
    steps[0] = msgspec.structs.replace(steps[0], forced_id=66)
    steps[1] = msgspec.structs.replace(steps[1], allow_bitmask=mask.tobytes())
    assert [token.token_id for token in driver.run(*steps).tokens] == [66, 7]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_landing_is_biased_where_the_token_fed_back_ended_a_sentence(
    both: tuple[TorchRunner, GpuRunner], fed: bool, ends: bool, packed: bool
) -> None:
    runner = both[packed]
    driver = RunnerDriver(runner)
    vocab_size = runner.info.vocab_size
    first = driver.run(driver.dealer.share(Tracked(0, list(PROMPTS[0])), 7)).tokens[0].token_id
    mask = 1 << first if ends else (1 << vocab_size) - 1 - (1 << first)
    seq = Tracked(3, list(PROMPTS[0]), sentence_ends=mask.to_bytes(-(-vocab_size // 32) * 4, "little"))
    plain = Tracked(5, list(PROMPTS[1]))
    drawn = driver.run(driver.dealer.share(seq, 7), driver.dealer.share(plain, 1)).tokens
    assert drawn[0].token_id == first
    seq.ids.append(first)
    plain.ids.append(drawn[1].token_id)
    step = driver.dealer.share(seq, 1, fed=fed)
    usual = {token.slot: token.token_id for token in driver.run(step, driver.dealer.share(plain, 1)).tokens}
    landing_id = next(n for n in range(vocab_size) if n not in usual.values())
    again = msgspec.structs.replace(step, landing_id=landing_id, landing_bias=1e4, new_blocks=())
    with torch.inference_mode():
        runner._slots.last_token[seq.slot] = first  # the step is run twice
    landed = driver.run(again).tokens[0].token_id
    assert landed == (landing_id if ends or not fed else usual[3])


def test_a_slot_whose_parameters_make_no_sense_fails_alone(both: tuple[TorchRunner, GpuRunner]) -> None:
    driver = RunnerDriver(both[1])
    broken = SamplingParams(temperature=float("nan"))
    steps = [driver.dealer.share(Tracked(0, [1, 2], sampling=broken), 2), driver.dealer.share(Tracked(1, [1, 2]), 2)]
    output = driver.run(*steps)
    assert output.failed_slots == (0,)
    assert [token.slot for token in output.tokens] == [1]


def test_padded_sizes_are_few_and_end_at_the_limit() -> None:
    assert decode_sizes(1) == [1]
    assert decode_sizes(12) == [1, 2, 4, 8, 12]
    sizes = decode_sizes(256)
    assert sizes[:6] == [1, 2, 4, 8, 16, 32]
    assert sizes[-1] == 256
    shapes = Shapes(recorded_shapes(256, 2048), 256, 2048)
    for n in range(1, 257):
        found = shapes.fit(StepShape(n, n, True))
        assert n <= found.num_sequences <= max(n + 15, 4)
    assert shapes.fit(StepShape(100, 3, False)) == StepShape(128, 8, False)
    assert shapes.fit(StepShape(100, 40, False)) == StepShape(128, 64, False)
    assert shapes.fit(StepShape(600, 1, False)) == StepShape(608, 8, False)
    assert shapes.fit(StepShape(2045, 30, False)) == StepShape(2048, 64, False)


def test_short_contexts_have_a_form_of_their_own_and_long_ones_never_take_it() -> None:
    def share(start: int, num_tokens: int) -> SequenceStep:
        return SequenceStep(slot=0, start=start, num_tokens=num_tokens)

    first_turn, late_turn = share(0, 100), share(UNCUT_KEYS - 99, 100)
    assert shape_of([first_turn]).short
    assert shape_of([share(UNCUT_KEYS - 100, 100)]).short
    assert not shape_of([first_turn, late_turn]).short
    assert shape_of([share(9, 1), share(5, 1)]) == StepShape(2, 2, decode=True)
    shapes = Shapes(recorded_shapes(256, 2048), 256, 2048)
    assert shapes.fit(shape_of([first_turn])) == StepShape(128, 8, decode=False, short=True)
    assert shapes.fit(shape_of([late_turn])) == StepShape(128, 8, decode=False)
    assert shapes.fit(shape_of([share(0, 1000)])) == StepShape(1008, 8, decode=False, short=True)
    assert shapes.fit(StepShape(100, 40, decode=False, short=True)) == StepShape(128, 64, decode=False)


def test_going_through_all_steps_changes_no_answer(both: tuple[TorchRunner, GpuRunner]) -> None:
    eager = token_ids(generate(both[0], SAMPLINGS, num_tokens=4))
    both[1].go_through()
    assert token_ids(generate(both[1], SAMPLINGS, num_tokens=4)) == eager

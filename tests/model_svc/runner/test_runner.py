"""What a plan asks for is what happens: draws, masks, feedback, shared blocks, faults that stay with their sequence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from model_svc.engine.plan import NewSequence, SequenceStep
from model_svc.models.decoder import Decoder
from model_svc.runner.load import RunnerConfigError, make_runner
from model_svc.runner.runner import TorchRunner
from tests.model_svc.paged import GREEDY, ModelDriver, RunnerDriver, Tracked, token_ids
from wire.messages import SamplingParams, pack_ids

VOCAB = 67
PROMPT = [5, 9, 14, 3, 60, 22, 41]
WARM = SamplingParams(temperature=1.0)


@pytest.fixture
def runner(tiny_model: Decoder) -> TorchRunner:
    made = make_runner(tiny_model, num_blocks=64, block_size=4, max_num_seqs=8)
    assert isinstance(made, TorchRunner)
    return made


def generate(runner: TorchRunner, sampling: SamplingParams, num_tokens: int = 12, **fields: Any) -> list[int]:
    seq = Tracked(0, list(PROMPT), sampling=sampling, **fields)
    return token_ids(RunnerDriver(runner).generate([seq], num_tokens))[0]


def reference_logits(model: Decoder, ids: list[int]) -> torch.Tensor:
    """Logits after the last id, from a fresh cache and without any sampler."""
    return ModelDriver(model).logits((Tracked(0, list(ids)), len(ids)))[0][-1]


def test_greedy_takes_the_best_token_at_each_position(runner: TorchRunner, tiny_model: Decoder) -> None:
    got = generate(runner, GREEDY)
    assert len(set(got)) > 3
    for n, token in enumerate(got):
        assert token == int(reference_logits(tiny_model, PROMPT + got[:n]).argmax())


def test_tokens_fed_back_on_the_device_equal_tokens_sent_by_the_host(runner: TorchRunner) -> None:
    seq, other = Tracked(1, list(PROMPT)), Tracked(1, list(PROMPT))
    fed = RunnerDriver(runner).generate([seq], 10, fed=True)
    sent = RunnerDriver(runner).generate([other], 10, fed=False)
    assert token_ids(fed) == token_ids(sent)


def test_a_seed_fixes_the_draw_and_another_changes_it(runner: TorchRunner) -> None:
    first = generate(runner, WARM, seed=4)
    assert generate(runner, WARM, seed=4) == first
    assert generate(runner, WARM, seed=5) != first
    assert generate(runner, WARM, seed=-(1 << 70)) != first  # any integer is a seed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_that_starts_again_after_preemption_continues_as_if_nothing_was(
    runner: TorchRunner, temperature: float
) -> None:
    # Without what was generated before, the greedy one would say its first tokens again.
    sampling = SamplingParams(temperature=temperature, frequency_penalty=2.0, repetition_penalty=1.3)
    whole = generate(runner, sampling, 12, seed=9)
    again = Tracked(3, PROMPT + whole[:6], sampling=sampling, seed=9)
    again.num_prompt = len(PROMPT)
    assert token_ids(RunnerDriver(runner).generate([again], 6))[3] == whole[6:]


def test_draws_follow_the_model_s_distribution(runner: TorchRunner, tiny_model: Decoder) -> None:
    sampling = SamplingParams(temperature=0.7, top_k=5)
    driver = RunnerDriver(runner)
    drawn: Counter[int] = Counter()
    for round_ in range(100):
        steps = [
            driver.dealer.share(Tracked(slot, list(PROMPT), sampling=sampling, seed=round_ * 8 + slot), len(PROMPT))
            for slot in range(8)
        ]
        driver.dealer = type(driver.dealer)(64, 4)
        drawn.update(token.token_id for token in driver.run(*steps).tokens)
    top = reference_logits(tiny_model, PROMPT).topk(5)
    wanted = dict(zip(top.indices.tolist(), (top.values / 0.7).softmax(0).tolist(), strict=True))
    assert set(drawn) <= set(wanted)
    for token, share in wanted.items():
        assert drawn[token] / 800 == pytest.approx(share, abs=0.06)


def test_a_forced_id_wins_over_everything_and_is_what_the_next_step_sees(
    runner: TorchRunner, tiny_model: Decoder
) -> None:
    driver = RunnerDriver(runner)
    mask = np.zeros(3, np.int32)
    mask[0] = 1 << 7
    step = driver.dealer.share(Tracked(2, list(PROMPT)), len(PROMPT))
    step = msgspec.structs.replace(step, forced_id=66, allow_bitmask=mask.tobytes())
    output = driver.run(step)
    assert [(token.slot, token.token_id) for token in output.tokens] == [(2, 66)]
    follow = driver.run(SequenceStep(slot=2, start=len(PROMPT), num_tokens=1, from_device=True))
    assert follow.tokens[0].token_id == int(reference_logits(tiny_model, [*PROMPT, 66]).argmax())


def test_a_bit_mask_holds_for_its_row_only(runner: TorchRunner, tiny_model: Decoder) -> None:
    driver = RunnerDriver(runner)
    allowed = [1, 33, 66]
    bits = np.zeros(96, np.uint8)
    bits[allowed] = 1
    steps = [driver.dealer.share(Tracked(slot, list(PROMPT)), len(PROMPT)) for slot in (0, 1)]
    steps[1] = msgspec.structs.replace(steps[1], allow_bitmask=np.packbits(bits, bitorder="little").tobytes())
    free, masked = driver.run(*steps).tokens
    logits = reference_logits(tiny_model, PROMPT)
    assert free.token_id == int(logits.argmax())
    assert masked.token_id == allowed[int(logits[allowed].argmax())] != free.token_id


def test_stop_ids_cannot_come_before_min_tokens(runner: TorchRunner) -> None:
    driver = RunnerDriver(runner)
    seq = Tracked(0, list(PROMPT), sampling=SamplingParams(temperature=0.0, min_tokens=3, logit_bias={44: 100.0}))
    step = driver.dealer.share(seq, len(PROMPT))
    assert step.new is not None
    step = msgspec.structs.replace(step, new=msgspec.structs.replace(step.new, stop_token_ids=(44,)))
    got = []
    for _ in range(6):
        got.append(driver.run(step).tokens[0].token_id)
        seq.ids.append(got[-1])
        step = driver.dealer.share(seq, 1)
    assert 44 not in got[:3]
    assert got[3:] == [44, 44, 44]


def test_logit_bias_and_penalties_change_what_is_drawn(runner: TorchRunner) -> None:
    assert generate(runner, SamplingParams(temperature=0.0, logit_bias={44: 100.0}), 3) == [44, 44, 44]
    free = generate(runner, GREEDY, 24)
    assert max(Counter(free).values()) > 1
    fresh = generate(runner, SamplingParams(temperature=0.0, presence_penalty=100.0), 24)
    assert max(Counter(fresh).values()) == 1
    unseen = generate(runner, SamplingParams(temperature=0.0, repetition_penalty=1e6), 12)
    assert not set(unseen) & set(PROMPT)


def test_logprobs_are_the_model_s_own_whatever_the_sampler_does(runner: TorchRunner, tiny_model: Decoder) -> None:
    driver = RunnerDriver(runner)
    odd = SamplingParams(temperature=1.7, top_k=2, presence_penalty=1.0, logit_bias={3: -4.0}, logprobs=3)
    plain = SamplingParams(temperature=0.0, logprobs=0)
    steps = [
        driver.dealer.share(Tracked(slot, list(PROMPT), sampling=sampling), len(PROMPT))
        for slot, sampling in enumerate((odd, GREEDY, plain))
    ]
    first, second, third = driver.run(*steps).tokens
    expected = reference_logits(tiny_model, PROMPT).log_softmax(0)
    assert first.logprob == pytest.approx(float(expected[first.token_id]), abs=1e-4)
    assert list(first.top_ids) == expected.topk(3).indices.tolist()
    assert first.top_logprobs == pytest.approx(expected.topk(3).values.tolist(), abs=1e-4)
    assert (second.logprob, second.top_ids) == (0.0, ())
    assert third.logprob == pytest.approx(float(expected.max()), abs=1e-4)
    assert third.top_ids == ()


@pytest.mark.parametrize(
    "bad",
    [
        SamplingParams(temperature=float("nan")),
        SamplingParams(temperature=float("inf")),
        SamplingParams(temperature=-1.0),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=float("nan")),
        SamplingParams(min_p=2.0),
        SamplingParams(repetition_penalty=0.0),
        SamplingParams(presence_penalty=float("-inf")),
        SamplingParams(top_k=-7),
        SamplingParams(logit_bias={VOCAB: 1.0}),
        SamplingParams(logit_bias={-1: 1.0}),
        SamplingParams(logit_bias={4: float("nan")}),
    ],
    ids=str,
)
def test_parameters_that_no_sampler_can_take_fail_their_own_sequence_only(
    runner: TorchRunner, bad: SamplingParams
) -> None:
    driver = RunnerDriver(runner)
    healthy = generate(runner, GREEDY, 1)
    steps = [
        driver.dealer.share(Tracked(slot, list(PROMPT), sampling=sampling), len(PROMPT))
        for slot, sampling in enumerate((GREEDY, bad, GREEDY))
    ]
    output = driver.run(*steps)
    assert output.failed_slots == (1,)
    assert [(token.slot, token.token_id) for token in output.tokens] == [(0, healthy[0]), (2, healthy[0])]


def test_out_of_vocabulary_stop_ids_fail_their_own_sequence_only(runner: TorchRunner) -> None:
    new = NewSequence(
        sampling=SamplingParams(min_tokens=2), seed=0, prompt_ids=pack_ids(PROMPT), stop_token_ids=(99999999,)
    )
    step = SequenceStep(slot=4, start=0, num_tokens=7, token_ids=pack_ids(PROMPT), new_blocks=(1, 2), new=new)
    assert RunnerDriver(runner).run(step).failed_slots == (4,)
    assert len(generate(runner, GREEDY)) == 12


@pytest.mark.parametrize("top_k", [0, -1, VOCAB, VOCAB + 1, 2147483648, 9999999])
def test_a_top_k_at_or_beyond_the_vocabulary_is_no_limit(runner: TorchRunner, top_k: int) -> None:
    assert generate(runner, SamplingParams(temperature=1.0, top_k=top_k), seed=2) == generate(runner, WARM, seed=2)


def test_logits_that_are_not_finite_fail_their_sequence_and_leave_no_trace_in_reused_blocks(
    runner: TorchRunner,
) -> None:
    expected = {slot: generate(runner, GREEDY, 6) for slot in (0, 2)}
    driver = RunnerDriver(runner)
    healthy, sick = Tracked(0, list(PROMPT)), Tracked(1, list(PROMPT))
    steps = [driver.dealer.share(seq, len(PROMPT)) for seq in (healthy, sick)]
    first = driver.run(*steps)
    assert first.failed_slots == ()
    for keys, values in runner._cache.layers:  # what a broken kernel would leave there
        keys[steps[1].new_blocks[1]] = float("nan")
        values[steps[1].new_blocks[1]] = float("inf")
    seqs = {0: healthy, 1: sick}
    for token in first.tokens:
        seqs[token.slot].ids.append(token.token_id)
    second = driver.run(*(driver.dealer.share(seq, 1) for seq in (healthy, sick)))
    assert second.failed_slots == (1,)
    assert [token.slot for token in second.tokens] == [0]
    assert [first.tokens[0].token_id, second.tokens[0].token_id] == expected[0][:2]

    # The next owner of these blocks fills them in part only.
    reused = Tracked(2, list(PROMPT))
    step = msgspec.structs.replace(driver.dealer.share(reused, len(PROMPT)), new_blocks=steps[1].new_blocks)
    third = driver.run(step, freed_slots=(1,))
    assert [token.token_id for token in third.tokens] == expected[2][:1]


def test_two_sequences_may_share_blocks(runner: TorchRunner, tiny_model: Decoder) -> None:
    driver = RunnerDriver(runner)
    prompt = PROMPT[:5]  # one full block and a token
    first = Tracked(0, list(prompt))
    step = driver.dealer.share(first, 5)
    driver.run(step)
    shared = step.new_blocks[0]
    new = NewSequence(sampling=GREEDY, seed=0, prompt_ids=pack_ids([*prompt[:4], 50]))
    second = SequenceStep(
        slot=1, start=4, num_tokens=1, token_ids=pack_ids([50]), new_blocks=(shared, 63), new=new, output_index=0
    )
    other = SequenceStep(slot=0, start=5, num_tokens=1, token_ids=pack_ids([8]), output_index=1)
    output = driver.run(second, other)
    assert output.tokens[0].token_id == int(reference_logits(tiny_model, [*prompt[:4], 50]).argmax())
    assert output.tokens[1].token_id == int(reference_logits(tiny_model, [*prompt, 8]).argmax())


def test_a_step_without_samples_draws_nothing_and_an_empty_plan_is_allowed(runner: TorchRunner) -> None:
    driver = RunnerDriver(runner)
    seq = Tracked(0, list(PROMPT))
    assert driver.run(driver.dealer.share(seq, 3)).tokens == ()
    assert driver.run(freed_slots=(0,)).tokens == ()


def test_only_rows_that_sample_reach_the_head(runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Decoder.logits

    def spy(self: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return original(self, hidden)

    monkeypatch.setattr(Decoder, "logits", spy)
    driver = RunnerDriver(runner)
    sequences = [Tracked(slot, list(PROMPT)) for slot in range(3)]
    steps = [driver.dealer.share(seq, count) for seq, count in zip(sequences, (7, 4, 7), strict=True)]
    assert len(driver.run(*steps).tokens) == 2
    assert seen == [2]


def test_the_pool_is_sized_by_memory_and_a_pool_of_nothing_is_refused(tiny_model: Decoder) -> None:
    runner = make_runner(tiny_model, kv_memory_bytes=10_000, block_size=4, max_num_seqs=8)
    assert runner.info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # layers, k and v, KV heads, head dim, float32
    assert runner.info.num_blocks == 10_000 // (4 * 512)
    with pytest.raises(RunnerConfigError, match="no room for one block"):
        make_runner(tiny_model, kv_memory_bytes=100)

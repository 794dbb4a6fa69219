"""What a request may ask of the logits beyond a draw, on each runner, against plain torch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from model_svc.models.decoder import Decoder
from model_svc.runner.load import make_runner
from tests.model_svc.paged import ModelDriver, RunnerDriver, Tracked
from tests.model_svc.tiny import VOCAB, tiny_llama
from wire.messages import SamplingParams, TokenLogprob, pack_ids

PROMPT = [5, 9, 14, 3, 60, 22, 41, 7, 66, 1]
SIZES = {"num_blocks": 96, "block_size": 4, "max_num_seqs": 8}


_CARD = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(params=["eager", "packed", pytest.param("cuda", marks=_CARD)])
def driver(request: pytest.FixtureRequest, tiny_model: Decoder) -> RunnerDriver:
    if request.param == "cuda":
        return RunnerDriver(make_runner(tiny_llama("cuda"), **SIZES))  # type: ignore[arg-type]
    return RunnerDriver(make_runner(tiny_model, packed=request.param == "packed", **SIZES))  # type: ignore[arg-type]


def reference(model: Decoder) -> torch.Tensor:
    """Log-probabilities [len(PROMPT), V]."""
    (logits,) = ModelDriver(model).logits((Tracked(0, list(PROMPT)), len(PROMPT)))
    return logits.float().log_softmax(-1)


@pytest.mark.parametrize("chunk", [3, 4, len(PROMPT)])
def test_targets_get_the_models_own_log_probabilities(driver: RunnerDriver, tiny_model: Decoder, chunk: int) -> None:
    wanted = reference(tiny_model)
    seq, other = Tracked(0, list(PROMPT)), Tracked(1, [4, 8])
    entries: list[TokenLogprob] = []
    while seq.computed < len(PROMPT):
        start, num = seq.computed, min(chunk, len(PROMPT) - seq.computed)
        targets = pack_ids(PROMPT[start + 1 : start + 1 + num])
        share = msgspec.structs.replace(driver.dealer.share(seq, num), targets=targets, num_top=3)
        before = driver.dealer.share(other, 2 if other.computed == 0 else 1, sample=True)
        output = driver.run(before, share)
        other.ids.append(next(token.token_id for token in output.tokens if token.slot == 1))
        for found in output.targets:
            assert found.slot == 0
            entries += found.entries
    assert len(entries) == len(PROMPT) - 1
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(wanted[position, PROMPT[position + 1]]), abs=1e-4)
        values, ids = wanted[position].topk(3)
        assert entry.top_ids == tuple(ids.tolist())
        assert entry.top_logprobs == pytest.approx(values.tolist(), abs=1e-4)


def test_only_what_is_allowed_and_not_barred_is_drawn(driver: RunnerDriver, tiny_model: Decoder) -> None:
    order = reference(tiny_model)[-1].argsort(descending=True).tolist()
    first, second, third, fourth = order[:4]
    free = Tracked(0, list(PROMPT))
    allowed = Tracked(1, list(PROMPT), sampling=SamplingParams(temperature=0.0, allowed_token_ids=(third, fourth)))
    stepwise = Tracked(2, list(PROMPT))
    always = Tracked(3, list(PROMPT))
    steps = [driver.dealer.share(seq, len(PROMPT)) for seq in (free, allowed, stepwise, always)]
    steps[2] = msgspec.structs.replace(steps[2], barred_ids=(first,))
    assert steps[3].new is not None
    steps[3] = msgspec.structs.replace(steps[3], new=msgspec.structs.replace(steps[3].new, barred_ids=(first, second)))
    assert [token.token_id for token in driver.run(*steps).tokens] == [first, third, second, third]


@pytest.mark.parametrize(
    ("sampling", "barred"),
    [
        ({"allowed_token_ids": (4, 5)}, (4, 5)),
        ({"allowed_token_ids": (4, 5), "min_tokens": 3}, (4,)),
        ({}, tuple(range(VOCAB))),
    ],
)
def test_a_sequence_whose_rules_leave_no_token_fails_and_no_other_one(
    driver: RunnerDriver, sampling: dict[str, Any], barred: tuple[int, ...]
) -> None:
    """Token 0, which came of it, may be the one that ends an answer."""
    stuck = Tracked(0, list(PROMPT), sampling=SamplingParams(temperature=0.0, **sampling))
    other = Tracked(1, list(PROMPT))
    steps = [driver.dealer.share(seq, len(PROMPT)) for seq in (stuck, other)]
    assert steps[0].new is not None
    new = msgspec.structs.replace(steps[0].new, stop_token_ids=(5,))
    steps[0] = msgspec.structs.replace(steps[0], new=new, barred_ids=barred)
    output = driver.run(*steps)
    assert output.failed_slots == (0,)
    assert [token.slot for token in output.tokens if token.slot not in output.failed_slots] == [1]

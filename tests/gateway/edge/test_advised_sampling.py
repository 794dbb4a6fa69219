"""What a request does not say of sampling is what the model's makers advise."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.edge.schema.sampling import SamplingFields, translate_sampling
from tests.ring import tiny_model
from wire.messages import SamplingParams
from wire.model_card import ModelCard

__all__ = ["tiny_model"]

ADVICE = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


def translated(model: Path, **body: float) -> SamplingParams:
    card = msgspec.structs.replace(ModelCard.load(model), sampling=ADVICE)
    return translate_sampling(SamplingFields(**body), card, max_tokens=8, logprobs=None)  # type: ignore[arg-type]


def test_the_advice_holds_where_the_request_says_nothing(tiny_model: Path) -> None:
    params = translated(tiny_model)
    assert {name: getattr(params, name) for name in ADVICE} == ADVICE


def test_what_the_request_says_wins_zero_too(tiny_model: Path) -> None:
    params = translated(tiny_model, temperature=0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 1.0, 0)
    assert (params.min_p, params.repetition_penalty) == (0.0, 1.0)


def test_a_model_without_advice_is_sampled_as_it_is(tiny_model: Path) -> None:
    params = translate_sampling(SamplingFields(), ModelCard.load(tiny_model), max_tokens=8, logprobs=None)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)

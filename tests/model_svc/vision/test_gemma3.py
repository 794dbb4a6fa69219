"""Gemma 3, whose pictures' tokens see one another both ways: its logits, however prompts share steps and caches."""

from __future__ import annotations

import pytest

from model_svc.models.decoder import Decoder
from model_svc.runner.load import RunnerConfigError
from tests.model_svc.vision.seeing import BLOCK, Seeing, save
from tests.model_svc.vision.test_parity import BEGIN, END, RUNNERS, check, engine_of, loaded


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return save(tmp_path_factory.mktemp("seeing"), "Gemma3")


@pytest.fixture(scope="module")
def model(seeing: Seeing) -> Decoder:
    return loaded(seeing.directory)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("num_tokens", [64, 13], ids=["whole", "chunks"])
def test_a_prompt_with_pictures_gets_the_logits_of_the_whole_model(
    seeing: Seeing, model: Decoder, kind: str, num_tokens: int
) -> None:
    engine = engine_of(model, kind, max_num_batched_tokens=num_tokens, max_num_seqs=4)
    close = 3e-2 if kind == "native" else 2e-4
    one, again = (seeing.request(name, BEGIN * 2, 0, END) for name in ("one", "again"))
    other = seeing.request("other", BEGIN * 2, 1, END)
    assert other.ids == one.ids
    check(seeing, engine, one, seeing.request("none", BEGIN, END), atol=close)
    assert check(seeing, engine, again, other, atol=close) == [len(one.ids) // BLOCK * BLOCK, 8]
    check(seeing, engine, seeing.request("two", END, 1, BEGIN, 2, END), seeing.request("t", END, BEGIN), atol=close)


def test_a_prefix_hit_may_end_within_a_picture(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model, max_num_batched_tokens=13, max_num_seqs=4)
    check(seeing, engine, seeing.request("first", END, 0, [20, 21]))
    assert check(seeing, engine, seeing.request("second", END, 0, [40, 41, 42])) == [12]
    assert 12 in range(len(END), len(END) + 9 + 1)


def test_several_prompts_with_pictures_share_steps(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model, max_num_batched_tokens=20, max_num_seqs=4)
    parts: list[tuple[list[int] | int, ...]] = [(END, 0, BEGIN), (BEGIN, 1, END, 2), (BEGIN * 4,), (END * 3, 2, END)]
    check(seeing, engine, *(seeing.request(f"r{n}", *part) for n, part in enumerate(parts)), atol=2e-4)


def test_steps_too_short_for_a_picture_are_refused_by_name(model: Decoder) -> None:
    with pytest.raises(RunnerConfigError, match="max_num_batched_tokens must be 13 or more"):
        engine_of(model, max_num_batched_tokens=12, max_num_seqs=4)

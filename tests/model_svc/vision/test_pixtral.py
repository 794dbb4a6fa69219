"""Mistral 3, whose pictures keep their shape, in rows: its logits, however prompts share steps and caches."""

from __future__ import annotations

import pytest

from model_svc.models.decoder import Decoder
from model_svc.vision.pixtral import Mistral3Vision
from model_svc.weights.errors import CheckpointError
from tests.model_svc.vision.seeing import BLOCK, IMAGE_TOKEN, Seeing, save
from tests.model_svc.vision.test_parity import BEGIN, END, RUNNERS, check, engine_of, loaded


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return save(tmp_path_factory.mktemp("seeing"), "Mistral3")


@pytest.fixture(scope="module")
def model(seeing: Seeing) -> Decoder:
    return loaded(seeing.directory)


@pytest.mark.parametrize("kind", RUNNERS)
def test_chunks_may_end_within_a_picture_and_within_its_row(seeing: Seeing, model: Decoder, kind: str) -> None:
    engine = engine_of(model, kind, max_num_batched_tokens=7, max_num_seqs=4)
    close = 3e-2 if kind == "native" else 1e-4
    one, again = (seeing.request(name, BEGIN, 0, END) for name in ("one", "again"))
    assert one.ids.count(IMAGE_TOKEN) == one.request.pictures[0].num_features == 8
    check(seeing, engine, one, seeing.request("none", BEGIN, END), atol=close)
    assert check(seeing, engine, again, atol=close) == [len(one.ids) // BLOCK * BLOCK]
    check(seeing, engine, seeing.request("two", END, 1, BEGIN, 2), seeing.request("text", END, BEGIN), atol=close)


def test_several_prompts_with_pictures_share_steps(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model, max_num_batched_tokens=64, max_num_seqs=4)
    parts: list[tuple[list[int] | int, ...]] = [(END, 0, BEGIN), (BEGIN, 1, END, 2), (BEGIN * 4,), (END * 3, 2)]
    check(seeing, engine, *(seeing.request(f"r{n}", *part) for n, part in enumerate(parts)))


def test_a_prefix_hit_may_end_within_a_picture(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model, max_num_batched_tokens=13, max_num_seqs=4)
    check(seeing, engine, seeing.request("first", END, 1, [20, 21]))
    again = seeing.request("second", END, 1, [40])
    assert check(seeing, engine, again) == [12]
    assert 12 in range(len(END), len(again.ids) - 1)


@pytest.mark.parametrize(
    ("says", "fault"),
    [
        ({"vision_feature_layer": -2}, "vision_feature_layer must be -1"),
        ({"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy must be 'full'"),
        ({"vision_config": {"hidden_size": 24, "num_attention_heads": 4}}, "heads of 6, make no sense"),
        ({"vision_config": {"rope_parameters": {"rope_theta": 0}}}, "rope_theta 0 of what sees"),
        ({"spatial_merge_size": 0}, "scale_factor of what sees must be a positive integer"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_field(seeing: Seeing, says: dict[str, object], fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Mistral3Vision.read_config(seeing.directory / "config.json", {"vision_config": {}} | says)

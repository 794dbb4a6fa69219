"""Qwen's models, whose pictures have rows and columns: answers are the oracle's however prompts are cut and cached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_svc.engine.drafter import Drafter
from model_svc.engine.roster import BLOCKS
from model_svc.models.decoder import Decoder
from model_svc.vision.qwen_config import qwen2_5_config
from model_svc.vision.qwen_parts import patches_of
from model_svc.weights.errors import CheckpointError
from tests.model_svc.engine.guessers import Parrot
from tests.model_svc.vision.seeing import BLOCK, SIZES, Seeing, picture_of, save
from tests.model_svc.vision.test_parity import BEGIN, END, RUNNERS, answers, check, engine_of, loaded
from wire.pictures import read_form

OLD = {
    "min_pixels": 150,
    "max_pixels": 500,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
}


@pytest.fixture(scope="module", params=["Qwen2_5_VL", "Qwen3VL"])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return save(tmp_path_factory.mktemp("seeing"), request.param)


@pytest.fixture(scope="module")
def model(seeing: Seeing) -> Decoder:
    return loaded(seeing.directory)


def test_patches_have_the_numbers_of_transformers_to_the_bit(seeing: Seeing, model: Decoder) -> None:
    assert model.vision is not None
    config = qwen2_5_config(seeing.directory / "config.json", model.config.raw)
    for number in range(len(SIZES)):
        picture = seeing.picture(picture_of(number))
        tiles = torch.frombuffer(bytearray(picture.tiles), dtype=torch.uint8).view(1, picture.height, picture.width, 3)
        wanted = seeing.shown([picture_of(number)])["pixel_values"]
        assert torch.equal(patches_of(model.vision._pixels(tiles)[0], config), wanted)


@pytest.mark.parametrize("kind", RUNNERS)
def test_positions_of_rows_and_columns_hold_in_chunks_guesses_and_recorded_steps(
    seeing: Seeing, model: Decoder, kind: str
) -> None:
    engine = engine_of(model, kind, max_num_batched_tokens=24, max_drafts=8)
    close = 3e-2 if kind == "native" else 2e-4  # keys and values in float16
    one, again = (seeing.request(name, BEGIN, 0, END, 2, END) for name in ("one", "again"))
    text = seeing.request("text", BEGIN * 2)
    check(seeing, engine, one, text, atol=close)
    assert check(seeing, engine, again, atol=close) == [(len(one.ids) - 1) // BLOCK * BLOCK]
    engine.scheduler.drafter = Drafter(Parrot(1, 2, 3), max_length=3, max_drafts=8, adaptive=False)
    check(seeing, engine, seeing.request("guessed", END, 1), seeing.request("plain", END), atol=close)


def test_a_prefix_hit_may_end_within_a_picture(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model, max_num_batched_tokens=30)
    first, second = (seeing.request(name, END, 0, [20 + n]) for n, name in enumerate(("first", "second")))
    check(seeing, engine, first)
    (cached,) = check(seeing, engine, second)
    assert len(END) < cached < len(first.ids) - 1


def test_an_answer_that_was_preempted_goes_on_at_its_positions(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model)
    request = seeing.request("r", BEGIN, 0, END, logprobs=None).request
    engine.add(request)
    begun = [token for _ in range(3) for chunk in engine.step() for token in chunk.token_ids]
    (seq,) = engine.scheduler.roster.decoding
    engine.scheduler.roster.preempt(seq, BLOCKS)
    rest = answers(engine)["r"][0]
    assert len(begun) == 3
    assert begun + rest == answers(engine_of(model), request)["r"][0]


@pytest.mark.parametrize("seeing", ["Qwen2_5_VL"], indirect=True)
def test_new_checkpoints_name_both_parts(seeing: Seeing, model: Decoder, tmp_path: Path) -> None:
    for name in ("config.json", "processor_config.json", "preprocessor_config.json"):
        if (seeing.directory / name).exists():
            (tmp_path / name).write_bytes((seeing.directory / name).read_bytes())
    places = {"model.": "model.language_model.", "visual.": "model.visual."}
    tensors = load_file(seeing.directory / "model.safetensors")
    for name in tuple(tensors):
        place = next((place for place in places if name.startswith(place)), None)
        if place is not None:
            tensors[places[place] + name.removeprefix(place)] = tensors.pop(name)
    assert "model.visual.blocks.0.norm1.weight" in tensors
    save_file(tensors, tmp_path / "model.safetensors")
    check(seeing, engine_of(loaded(tmp_path)), seeing.request("new", BEGIN, 0, END))


@pytest.mark.parametrize("seeing", ["Qwen2_5_VL"], indirect=True)
def test_old_checkpoints_have_one_config_for_both_parts(seeing: Seeing, tmp_path: Path) -> None:
    config = json.loads((seeing.directory / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = text | config | {"model_type": "qwen2_5_vl", "rope_theta": rope["rope_theta"]}
    old["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    (tmp_path / "config.json").write_text(json.dumps(old))
    (tmp_path / "model.safetensors").symlink_to(seeing.directory / "model.safetensors")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(OLD))
    form = read_form(tmp_path, config["architectures"][0])
    assert form == seeing.form
    check(seeing, engine_of(loaded(tmp_path)), seeing.request("old", BEGIN, 0, END))


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"num_heads": 7}, "7 heads of hidden_size 1280"),
        ({"window_size": 20}, "window_size 20 has no room"),
        ({"in_chans": 4}, "in_channels must be 3"),
        ({"fullatt_block_indexes": ["all"]}, "fullatt_block_indexes of what sees"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_parameters of what sees"),
    ],
)
def test_a_tower_that_makes_no_sense_is_refused_by_its_field(said: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        qwen2_5_config(Path("config.json"), {"vision_config": said})

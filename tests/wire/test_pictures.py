"""The geometry of pictures is that of transformers' processors: sizes, tiles, and the text that stands for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PILImage
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.image_utils import SizeDict
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from wire.errors import InvalidRequestError
from wire.model_card import ModelCard, ModelCardError
from wire.pictures import PictureForm, read_form, read_processor

SIZES = [(64, 64), (1, 1), (1, 300), (301, 2), (37, 111), (128, 31), (33, 32), (97, 640), (513, 511), (255, 256)]
IDEFICS3: dict[str, Any] = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "vision_config": {"image_size": 32, "patch_size": 4},
    "scale_factor": 2,
}
SPLITS: dict[str, Any] = {
    "size": {"longest_edge": 128},
    "max_image_size": {"longest_edge": 32},
    "do_image_splitting": True,
}


def form_of(path: Path, config: dict[str, Any], processor: dict[str, Any] | None = None) -> PictureForm:
    (path / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    form = read_form(path, config["architectures"][0])
    assert form is not None
    return form


def picture(size: tuple[int, int]) -> Any:
    return PILImage.new("RGB", size, (200, 100, 50))


def idefics3_text(rows: int, columns: int) -> str:
    words = tokenizer("<fake_token_around_image>", "<image>", "<global-img>")
    processor = Idefics3Processor(Idefics3ImageProcessorPil(), words, image_seq_len=16)
    text: str = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
    return text


def smolvlm_text(rows: int, columns: int) -> str:
    around = "<fake_token_around_image>"
    return str(get_image_prompt_string(rows, columns, 16, around, "<image>", "<global-img>"))


def tokenizer(*texts: str, **tokens: Any) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])), **tokens)
    made.add_special_tokens({"additional_special_tokens": list(texts)})
    return made


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("longest", [32, 100, 128])
@pytest.mark.parametrize(
    ("family", "images", "text"),
    [
        ("Idefics3", Idefics3ImageProcessorPil, idefics3_text),
        ("SmolVLM", SmolVLMImageProcessorPil, smolvlm_text),
    ],
)
def test_idefics3_and_smolvlm(
    family: str, images: Any, text: Callable[[int, int], str], longest: int, splits: bool, tmp_path: Path
) -> None:
    processor = SPLITS | {"size": {"longest_edge": longest}, "do_image_splitting": splits}
    form = form_of(tmp_path, IDEFICS3 | {"architectures": [f"{family}ForConditionalGeneration"]}, processor)
    theirs = images(**processor, return_row_col_info=True)
    for size in SIZES:
        layout, seen = form.layout(*size), theirs([[picture(size)]], return_tensors="np")
        assert (layout.rows, layout.columns) == (seen["rows"][0][0], seen["cols"][0][0]), size
        assert seen["pixel_values"].shape[1:] == (layout.num_tiles, 3, *layout.tile), size
        assert layout.text == text(layout.rows, layout.columns), size
        assert layout.num_image_tokens == layout.text.count(form.image_token) == 16 * layout.num_tiles


def test_the_sizes_on_the_way_are_the_resizes_of_transformers(tmp_path: Path) -> None:
    form = form_of(tmp_path, IDEFICS3, SPLITS)
    theirs: Any = Idefics3ImageProcessorPil(**SPLITS)
    for size in [*SIZES, (9000, 1)]:
        array = np.zeros((3, size[1], size[0]), dtype=np.uint8)
        first = theirs.resize(array, SizeDict(longest_edge=128), resample=0)
        second = theirs.resize_for_vision_encoder(first, 32, resample=0)
        assert form.layout(*size).sizes == (first.shape[:0:-1], second.shape[:0:-1])


def test_gemma3(tmp_path: Path) -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": {"image_size": 28, "patch_size": 7},
        "mm_tokens_per_image": 4,
    }
    form = form_of(tmp_path, config)
    tokens = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    words = tokenizer(*tokens.values(), extra_special_tokens=tokens)
    images: Any = Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    theirs = Gemma3Processor(images, words, image_seq_length=4)
    for size in SIZES:
        layout = form.layout(*size)
        assert layout.text == theirs.full_image_sequence
        assert images([[picture(size)]], return_tensors="np")["pixel_values"].shape == (1, 3, *layout.sizes[-1])
    assert (layout.num_tiles, layout.num_image_tokens) == (1, 4)


def test_mistral3(tmp_path: Path) -> None:
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "vision_config": {"image_size": 112, "patch_size": 7},
        "spatial_merge_size": 2,
    }
    form = form_of(tmp_path, config, {"size": {"longest_edge": 112}})
    theirs: Any = PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size=14)
    for size in SIZES:
        if max(size) > 112 * min(size):
            continue  # transformers makes nothing of it
        layout = form.layout(*size)
        height, width = theirs([picture(size)], return_tensors="np")["image_sizes"][0]
        assert layout.sizes == ((width, height),), size
        rows, columns = height // 14, width // 14
        lines = [*["[IMG]"] * columns, "[IMG_BREAK]"] * rows
        assert layout.text == "".join([*lines[:-1], "[IMG_END]"])
        assert layout.num_image_tokens == rows * columns
    assert form.layout(1, 9000).num_image_tokens == 8


def test_what_an_image_processor_does_not_say_is_as_usual_in_its_family(tmp_path: Path) -> None:
    known = (Gemma3ImageProcessorPil, Idefics3ImageProcessorPil, PixtralImageProcessorPil, Qwen2VLImageProcessorPil)
    for theirs in known:
        usual: Any = theirs()
        said = {"image_processor_type": usual.to_dict()["image_processor_type"]}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
        found = read_processor(tmp_path)
        assert found.resample == usual.resample
        assert found.rescale_factor == usual.rescale_factor
        for name in ("image_mean", "image_std"):
            assert np.array_equal(np.broadcast_to(getattr(found, name), 3), getattr(usual, name))


QWEN: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
}


@pytest.mark.parametrize("said", [{}, {"size": {"shortest_edge": 5000, "longest_edge": 90000}}, {"max_pixels": 4000}])
def test_qwen2_5_vl(said: dict[str, Any], tmp_path: Path) -> None:
    form = form_of(tmp_path, QWEN, said)
    size = said.get("size", {})
    fewest, most = size.get("shortest_edge", 56 * 56), said.get("max_pixels", size.get("longest_edge", 28 * 28 * 1280))
    for width, height in [*SIZES, (14, 42), (70, 98), (2000, 1999), (8000, 41)]:
        if max(width, height) > 200 * min(width, height):
            with pytest.raises(InvalidRequestError, match=f"{width} x {height} pixels is too thin"):
                form.layout(width, height)
            continue
        layout = form.layout(width, height)
        rows, columns = (edge // 28 for edge in smart_resize(height, width, 28, fewest, most))
        assert layout.sizes == (layout.tile,) == ((28 * columns, 28 * rows),)
        assert layout.text == "<|image_pad|>" * rows * columns
        assert layout.num_image_tokens == rows * columns


def test_a_checkpoint_of_todays_says_it_in_processor_config(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": SPLITS}))
    assert form_of(tmp_path, IDEFICS3).layout(128, 64).rows == 2


def test_what_sees_nothing_has_no_form(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 9}}))
    assert read_form(tmp_path, "Gemma3ForConditionalGeneration") is None
    assert ModelCard.load(tmp_path).pictures is None


def test_a_card_tells_of_pictures_only_where_they_are_served(tmp_path: Path) -> None:
    config = IDEFICS3 | {"text_config": {"vocab_size": 9}}
    form_of(tmp_path, config)
    assert ModelCard.load(tmp_path).pictures is not None
    other = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {"model_type": "clip_vision_model"}}
    (tmp_path / "config.json").write_text(json.dumps(config | other))
    assert ModelCard.load(tmp_path).pictures is None


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}}))
    with pytest.raises(ModelCardError, match=r"config\.json: vision_config\.patch_size"):
        read_form(tmp_path, "SmolVLMForConditionalGeneration")

"""GGUF files with an mmproj file beside them: what is pulled sees as the checkpoint does that they were made of."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from headrace.pull import PullError, pull
from headrace.pull.mmproj import candidates
from tests.headrace.gguf_seeing import KINDS, metadata_of, mmproj_of, texts_of
from tests.headrace.gguf_vocab import byte_tensors, byte_vocab, write
from tests.model_svc.vision.seeing import IMAGE_TOKEN, Seeing, picture_of, save
from tests.model_svc.vision.test_parity import BEGIN, END, check, engine_of, loaded
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

# What a GGUF file of Gemma 3 cannot say otherwise: each sixth layer is full, scores have the scale of a head's size.
TEXTS: dict[str, dict[str, Any]] = {"Gemma3": {"layer_types": ["sliding_attention"] * 3, "query_pre_attn_scalar": 16}}
OF_TEXTS: dict[str, dict[str, Any]] = {"Gemma3": {"attention.sliding_window": 20}}
SAYS: dict[str, dict[str, Any]] = {
    "Gemma3": {"projector.scale_factor": 2},
    "Idefics3": {"projector.scale_factor": 2, "preproc_image_size": 24},
    "Llava": {},
    "Mistral3": {"spatial_merge_size": 2},
}


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Seeing, Path]:
    folder, family = tmp_path_factory.mktemp("files"), request.param
    seeing = save(folder / "checkpoint", family, **TEXTS.get(family, {}))
    texts_of(seeing, folder / "Tiny.gguf", family, OF_TEXTS.get(family, {}))
    mmproj_of(seeing, folder / "mmproj-f16.gguf", family, **SAYS[family])
    return family, seeing, folder


def test_a_pulled_file_sees_what_the_checkpoint_sees(files: tuple[str, Seeing, Path], tmp_path: Path) -> None:
    family, seeing, folder = files
    pulled = pull(str(folder / "Tiny.gguf"), tmp_path)
    mine, image = Seeing(pulled, seeing.oracle, seeing.processor), picture_of(1)
    assert mine.picture(image) == seeing.picture(image)
    asked = mine.request("one", BEGIN, 0, END, 1), mine.request("text", END)
    check(seeing, engine_of(loaded(pulled)), *asked, atol=5e-2)  # the tower is in float16
    controls = Vocabulary.load(pulled).special
    assert set(KINDS[family][2]) <= controls.keys()
    assert controls[KINDS[family][2][-1]] == IMAGE_TOKEN
    assert ModelCard.load(pulled).pictures is not None


def test_files_of_early_2025_name_products_the_other_way_and_no_size(tmp_path: Path) -> None:
    seeing = save(tmp_path / "checkpoint", "Idefics3")
    texts = texts_of(seeing, tmp_path / "Tiny.gguf", "Idefics3", {})
    named = mmproj_of(seeing, tmp_path / "old.gguf", "Idefics3", old=True, **{"projector.scale_factor": 2})
    pulled = pull(str(texts), tmp_path / "models", mmproj=str(named))
    processor = json.loads((pulled / "preprocessor_config.json").read_text())
    assert (processor["size"], processor["max_image_size"]) == ({"longest_edge": 48}, {"longest_edge": 12})
    found, wanted = loaded(pulled).vision, loaded(seeing.directory).vision
    assert found is not None
    assert wanted is not None
    tiles = torch.randint(256, (2, 12, 12, 3), dtype=torch.uint8)
    torch.testing.assert_close(found(tiles), wanted(tiles), rtol=0, atol=5e-2)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A model whose vocabulary has tokens for Idefics3's pictures, and what it sees with beside it."""
    metadata = byte_vocab()
    tokens = [*metadata["tokenizer.ggml.tokens"], "<image>", "<fake_token_around_image>", "<global-img>"]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
    mmproj(tmp_path / "mmproj-Q8_0.gguf", "idefics3")
    return write(tmp_path / "tiny.gguf", metadata, byte_tensors(metadata))


def mmproj(path: Path, kind: str, **says: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    metadata = metadata_of(kind) | {f"clip.vision.{key}": value for key, value in says.items()}
    return write(path, metadata, {"v.post_ln.bias": np.zeros(32, dtype=np.float32)})


def sees(directory: Path) -> bool:
    return (directory / "mmproj.gguf").exists() and (directory / "preprocessor_config.json").exists()


def test_a_model_sees_with_the_file_beside_it_unless_it_shall_not(texts: Path, tmp_path: Path) -> None:
    blind = pull(str(texts), tmp_path / "models", mmproj="none")
    assert not sees(blind)
    assert json.loads((blind / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    named = mmproj(tmp_path / "aside" / "what.gguf", "idefics3")
    assert sees(pull(str(texts), tmp_path / "models", mmproj=str(named)))  # though it had been pulled without
    assert (blind / "mmproj.gguf").stat().st_ino == named.stat().st_ino
    assert sees(pull(str(texts), tmp_path / "models", name="beside"))


def test_a_kind_that_is_not_served_is_named_and_texts_are(texts: Path, tmp_path: Path) -> None:
    named = mmproj(tmp_path / "aside" / "other.gguf", "ldp")
    told = io.StringIO()
    console = Console(file=told, width=400)
    assert not sees(pull(str(texts), tmp_path / "models", mmproj=str(named), console=console))
    known = "other.gguf is of kind ldp, which is not served (known are gemma3, idefics3, pixtral): no pictures."
    assert told.getvalue().split("\n")[0] == known


@pytest.mark.parametrize(
    ("kind", "says", "why"),
    [
        ("idefics3", {"projection_dim": 64}, "it makes features of width 64, the model's is 32"),
        ("gemma3", {}, "it sees for models of architecture gemma3, not llama"),
        ("pixtral", {}, r"the model's vocabulary has no \[IMG\]"),
    ],
)
def test_a_file_of_another_model_is_refused_where_it_is_named_and_passed_over_where_not(
    texts: Path, tmp_path: Path, kind: str, says: dict[str, Any], why: str
) -> None:
    other = mmproj(tmp_path / "mmproj-f16.gguf", kind, **says)  # comes before the one that fits
    with pytest.raises(PullError, match=rf"mmproj-f16\.gguf is not of the model in tiny\.gguf: {why}"):
        pull(str(texts), tmp_path / "models", mmproj=str(other))
    assert sees(pull(str(texts), tmp_path / "models"))


def test_what_is_no_file_to_see_with_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="is no mmproj file: it holds a model of its own"):
        pull(str(texts), tmp_path / "models", mmproj=str(texts))
    broken = mmproj(tmp_path / "aside" / "broken.gguf", "idefics3", **{"projector.scale_factor": 0})
    with pytest.raises(PullError, match=r"'clip\.vision\.projector\.scale_factor' is 0; it must be at least 1"):
        pull(str(texts), tmp_path / "models", mmproj=str(broken))
    with pytest.raises(PullError, match=r"absent\.gguf cannot be used: cannot be read"):
        pull(str(texts), tmp_path / "models", mmproj=str(tmp_path / "absent.gguf"))
    assert not list((tmp_path / "models").iterdir())


def test_of_several_files_the_one_of_16_bits_comes_first() -> None:
    names = ("a.gguf", "mmproj-x-Q8_0.gguf", "mmproj-BF16.gguf", "x-mmproj-F16.gguf", "mmproj-f32.gguf", "mmproj.txt")
    found = [path.name for path in candidates(map(Path, names))]
    assert found == ["x-mmproj-F16.gguf", "mmproj-BF16.gguf", "mmproj-f32.gguf", "mmproj-x-Q8_0.gguf"]

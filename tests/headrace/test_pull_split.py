"""`headrace pull` of a GGUF model in parts: the directory of the same model in one file, or one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headrace.pull import PullError, is_complete, pull
from headrace.pull.gguf_config import config_json
from model_svc.models.load import load_model
from model_svc.weights.gguf_parts import read_parts
from tests.headrace.gguf_gpt_oss import tiny_gpt_oss
from tests.headrace.gguf_models import tiny_model_file
from tests.headrace.gguf_vocab import byte_tensors, byte_vocab, write
from tests.headrace.tiny_wheel import leftovers
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.weights.gguf_split import split

IDS = [5, 80, 199, 3, 41, 260, 7, 7, 120, 66, 31, 12, 250, 90]


def write_family(path: Path, family: str) -> Path:
    if family == "gpt-oss":
        tiny_gpt_oss(path)
        return path
    return tiny_model_file(path, family)


def logits(directory: Path) -> torch.Tensor:
    model = load_model(directory, dtype=torch.float32, device=torch.device("cpu"))
    return ModelDriver(model).logits((Tracked(0, list(IDS)), len(IDS)))[0]


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3moe", "gpt-oss"])
def test_parts_pulled_by_the_name_of_any_are_the_model_of_one_file(tmp_path: Path, family: str) -> None:
    file = write_family(tmp_path / "Tiny-Q8.gguf", family)
    whole = pull(str(file), tmp_path / "models", name="whole")
    parts = split(file, 3, first_empty=family == "gpt-oss")
    directory = pull(str(parts[1]), tmp_path / "models")
    assert directory == tmp_path / "models" / "tiny-q8"
    assert is_complete(directory)
    files = {f"model-{n:05}-of-00003.gguf": part for n, part in enumerate(parts, 1)}
    assert {path.name for path in directory.glob("*.gguf")} == files.keys()
    assert all((directory / name).samefile(part) for name, part in files.items())  # links: no second copy
    for other in whole.glob("*.json"):
        assert (directory / other.name).read_bytes() == other.read_bytes()
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is (family == "gemma3")
    expected = logits(whole)
    assert expected.std() > 0.05
    assert torch.equal(logits(directory), expected)


def test_a_table_of_frequencies_is_read_from_the_part_that_has_it(tmp_path: Path) -> None:
    base = 10000.0 ** -(torch.arange(8) / 8)
    wavelength = 2 * torch.pi / base
    smooth = ((8192 / wavelength - 1) / 3).clamp(0, 1)
    metadata = byte_vocab()
    tensors = byte_tensors(metadata) | {"rope_freqs.weight": (1 / ((1 - smooth) / 8 + smooth)).numpy()}
    file = write(tmp_path / "m.gguf", metadata, tensors)
    expected = config_json(read_parts(file))
    assert expected["rope_scaling"]["rope_type"] == "llama3"
    parts = split(file, 2)
    header = read_parts(parts[0])
    assert header.tensors["rope_freqs.weight"].path == parts[1]
    assert config_json(header) == expected


def test_a_missing_part_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    parts = split(tiny_model_file(tmp_path / "tiny.gguf", "llama"), 3)
    parts[2].unlink()
    with pytest.raises(PullError, match=r"tiny-00003-of-00003\.gguf cannot be used: part 3 of 3 .* is missing"):
        pull(str(parts[0]), tmp_path / "models")
    assert leftovers(tmp_path / "models") == []

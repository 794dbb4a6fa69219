"""A GGUF model split into parts is the model; parts that are not those of one model are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf import GgufSource
from model_svc.weights.gguf_parts import read_parts
from model_svc.weights.open import open_weights
from tests.headrace.gguf_vocab import write
from tests.model_svc.weights.gguf_files import tiny_llama, write_llama
from tests.model_svc.weights.gguf_split import split

Parts = list[Path]


@pytest.mark.parametrize("first_empty", [False, True], ids=["tensors everywhere", "metadata alone first"])
def test_parts_hold_the_tensors_of_the_whole(tmp_path: Path, first_empty: bool) -> None:
    write_llama(tmp_path / "whole.gguf", tiny_llama(), "Q8_0")
    whole = GgufSource(tmp_path / "whole.gguf")
    folder = tmp_path / "split"
    folder.mkdir()
    write_llama(folder / "model.gguf", tiny_llama(), "Q8_0")
    parts = split(folder / "model.gguf", 3, first_empty=first_empty)
    found = open_weights(folder)
    assert isinstance(found, GgufSource)
    assert {tensor.path for tensor in found.header.tensors.values()} == set(parts[first_empty:])
    assert found.shapes == whole.shapes
    for name, shape in whole.shapes.items():
        np.testing.assert_array_equal(found.get(name, shape), whole.get(name, shape), err_msg=name)
    assert not found.unused()
    found.release()


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """Three parts with a tensor each."""
    return [part(tmp_path / f"m-0000{n + 1}-of-00003.gguf", n) for n in range(3)]


def part(path: Path, number: int, count: int = 3, told: int = 3, tensors: tuple[str, ...] = (), **more: Any) -> Path:
    names = tensors or (f"blk.{number}.attn_norm.weight",)
    metadata: dict[str, Any] = {"split.no": number, "split.count": count, "split.tensors.count": told, **more}
    if not number:
        metadata |= {"llama.attention.head_count": 2}
    values = np.ones(32, dtype=np.float32)
    return write(path, {"general.architecture": "llama", **metadata}, dict.fromkeys(names, values))


def test_any_part_stands_for_its_model(parts: Parts) -> None:
    whole = read_parts(parts[0])
    assert [read_parts(other) for other in parts] == [whole] * 3
    assert [tensor.path for tensor in whole.tensors.values()] == parts
    assert whole.path == parts[0]


FAULTS: dict[str, tuple[Callable[[Parts], object], int, str]] = {
    "the second is missing": (lambda parts: parts[1].unlink(), 1, "part 2 of 3 of a split model is missing"),
    "the first is missing": (lambda parts: parts[0].unlink(), 0, "part 1 of 3 of a split model is missing"),
    "one of four": (lambda parts: part(parts[2], 2, count=4), 2, "'split.count' is 4; it must be 3"),
    "of another order": (lambda parts: parts[0].replace(parts[2]) and part(parts[0], 0), 2, "'split.no' is 0"),
    "of a larger model": (lambda parts: part(parts[1], 1, told=9), 1, "is 9; it must be 3 in m-00001-of-00003"),
    "fewer tensors than told": (
        lambda parts: [part(path, n, told=4) for n, path in enumerate(parts)], 0, "is 4; it must be 3 by what all",
    ),
    "a tensor twice": (
        lambda parts: part(parts[2], 2, tensors=("blk.0.attn_norm.weight",)), 2,
        "'blk.0.attn_norm.weight' is in m-00001-of-00003.gguf, too",
    ),
    "no part by its metadata": (
        lambda parts: write(parts[1], {"general.architecture": "llama"}, {"a": np.ones(32, dtype=np.float32)}), 1,
        "'split.count' is missing",
    ),
    "cut off": (lambda parts: parts[2].write_bytes(parts[2].read_bytes()[:-64]), 2, "cut off"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_parts_that_are_not_one_model_are_refused_by_file_and_fault(parts: Parts, name: str) -> None:
    spoil, at_fault, fault = FAULTS[name]
    spoil(parts)
    with pytest.raises(CheckpointError, match=fault) as caught:
        open_weights(parts[0].parent)
    assert caught.value.path == str(parts[at_fault])


@pytest.mark.parametrize("name", ["m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-00000.gguf"])
def test_a_number_beyond_the_count_is_refused(parts: Parts, name: str) -> None:
    more = part(parts[0].with_name(name), 3)
    with pytest.raises(CheckpointError, match="number that no part of its model has") as caught:
        read_parts(more)
    assert caught.value.path == str(more)
    with pytest.raises(CheckpointError, match="no part of"):
        open_weights(more.parent)


@pytest.mark.parametrize("name", ["other.gguf", "n-00001-of-00003.gguf", "m-00001-of-00002.gguf"])
def test_files_of_a_second_model_in_the_directory_are_refused(parts: Parts, name: str) -> None:
    other = part(parts[0].with_name(name), 0)
    with pytest.raises(CheckpointError, match=r"no part of the model of m-00001-of-0000[23]\.gguf"):
        open_weights(other.parent)


def test_a_part_that_has_lost_its_name_is_refused_with_the_name_it_needs(parts: Parts, tmp_path: Path) -> None:
    renamed = parts[1].rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"model\.gguf: .*must end in -00002-of-00003\.gguf"):
        read_parts(renamed)


def test_a_model_split_into_one_part_is_a_file_by_any_name(tmp_path: Path) -> None:
    only = part(tmp_path / "m-00001-of-00001.gguf", 0, count=1, told=1)
    assert read_parts(only).tensors.keys() == {"blk.0.attn_norm.weight"}
    open_weights(tmp_path)
    only.rename(tmp_path / "model.gguf")
    open_weights(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"needs safetensors or a \.gguf file"):
        open_weights(tmp_path)

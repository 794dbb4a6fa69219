"""Safetensors: good files load without a copy; hostile, truncated, incomplete ones are refused with the fault named."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model_svc.weights.errors import CheckpointError
from model_svc.weights.open import open_weights
from model_svc.weights.safetensors import SafetensorsSource
from model_svc.weights.source import Shard

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def raw_file(header: bytes, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def with_header(entries: dict[str, Any], data: bytes = b"\0" * 8) -> bytes:
    return raw_file(json.dumps(entries).encode(), data)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "length_of_all_ones": (b"\xff" * 8 + b"{}", "cannot be in a file"),
    "length_beyond_the_file": (raw_file(b'{"a":1}', b"", length=1 << 20), "cannot be in a file"),
    "seven_bytes": (b"\0" * 7, "no safetensors file"),
    "empty": (b"", "no safetensors file"),
    "not_an_object": (raw_file(b"[1, 2]"), "does not start with"),
    "leading_space": (raw_file(b" {}", b""), "does not start with"),
    "duplicate_name": (raw_file(b'{"a":%s,"a":%s}' % ((json.dumps(ONE).encode(),) * 2)), "stands twice"),
    "overlap": (
        with_header({"a": ONE, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, b"\0" * 12),
        "overlaps",
    ),
    "hole": (
        with_header({"a": ONE, "b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]}}, b"\0" * 20),
        "leaves a hole of 4",
    ),
    "hole_at_the_start": (with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "leaves a hole"),
    "shape_product_overflow": (
        with_header({"a": {"dtype": "F32", "shape": [1 << 62, 1 << 62, 4], "data_offsets": [0, 8]}}),
        "takes",
    ),
    "shape_does_not_fit": (
        with_header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
        "takes 12 bytes",
    ),
    "negative_dim": (with_header({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}), "list of counts"),
    "boolean_dim": (with_header({"a": {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}}), "list of counts"),
    "float_offset": (with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.0]}}), "begin, end"),
    "backward_offsets": (with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}), "begin, end"),
    "many_dims": (with_header({"a": {"dtype": "F32", "shape": [1] * 99 + [2], "data_offsets": [0, 8]}}), "short list"),
    "unknown_dtype": (with_header({"a": {"dtype": "F9", "shape": [2], "data_offsets": [0, 8]}}), "dtype 'F9'"),
    "dtype_no_text": (with_header({"a": {"dtype": [], "shape": [2], "data_offsets": [0, 8]}}), "dtype"),
    "entry_no_object": (with_header({"a": 7}), "needs exactly"),
    "cut_by_one_byte": (with_header({"a": ONE}, b"\0" * 7), "cut off"),
    "bytes_behind_the_end": (with_header({"a": ONE}, b"\0" * 9), "of no tensor"),
    "nul_padding": (raw_file(json.dumps({"a": ONE}).encode() + b"\0\0"), "not valid JSON"),
    "deep_json": (raw_file(b'{"a":' + b"[" * 200_000), "not valid JSON"),
    "not_utf8": (raw_file(b'{"\xff\xfe":1}'), "not valid JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once_with_file_and_fault_named(tmp_path: Path, name: str) -> None:
    content, fault = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=fault) as caught:
        SafetensorsSource(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert str(path) in str(caught.value)


def test_space_padding_and_metadata_are_fine(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": ONE}).encode() + b"   "
    (tmp_path / "model.safetensors").write_bytes(raw_file(header, struct.pack("<2f", 1.5, -2.0)))
    assert SafetensorsSource(tmp_path).get("a", (2,)).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_tensors_written_by_the_safetensors_package_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = {"odd": torch.randn(3).to(torch.uint8), "m": (torch.randn(4, 5) * 3).to(dtype), "none": torch.empty(0, 3)}
    save_file(tensors, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    for name, tensor in tensors.items():
        got = source.get(name, tuple(tensor.shape))
        assert got.dtype == tensor.dtype
        assert torch.equal(got, tensor)
    assert source.unused() == frozenset()


def test_writing_to_a_mapped_tensor_never_reaches_the_file(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    SafetensorsSource(tmp_path).get("a", (4,)).zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before


def shards(directory: Path) -> None:
    save_file({"a": torch.ones(2), "extra": torch.ones(1)}, directory / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, directory / "model-00002-of-00002.safetensors")
    write_index(directory, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_load_by_the_index_and_what_it_does_not_name_is_ignored(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "stray-4bit.safetensors").write_bytes(b"\xff" * 40)
    source = open_weights(tmp_path)
    assert source.names() == {"a", "b"}
    assert source.get("b", (3,)).tolist() == [0, 0, 0]
    assert source.unused() == {"a"}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: the file is missing"):
        open_weights(tmp_path)


def test_a_tensor_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors", "ghost": "model-00002-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match="'ghost'"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "x.bin"]
)
def test_an_index_cannot_point_outside_the_directory(tmp_path: Path, file: str) -> None:
    save_file({"a": torch.ones(1)}, tmp_path.parent / "secret.safetensors")
    write_index(tmp_path, {"a": file})
    with pytest.raises(CheckpointError, match="no name of a safetensors file"):
        open_weights(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_a_malformed_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_weights(tmp_path)


def test_one_file_of_any_name_loads_without_an_index_and_two_do_not(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "weights.safetensors")
    assert open_weights(tmp_path).names() == {"a"}
    save_file({"a": torch.ones(1)}, tmp_path / "more.safetensors")
    with pytest.raises(CheckpointError, match="2 other safetensors files"):
        open_weights(tmp_path)


def test_a_directory_without_weights_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"needs safetensors or a \.gguf file"):
        open_weights(tmp_path)
    with pytest.raises(CheckpointError, match="headrace pull"):
        open_weights(tmp_path / "absent")


def test_wrong_names_and_shapes_are_named_and_shards_are_equal_parts(tmp_path: Path) -> None:
    save_file({"m": torch.arange(12.0).view(4, 3)}, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    with pytest.raises(CheckpointError, match="'n' is missing"):
        source.get("n", (4, 3))
    with pytest.raises(CheckpointError, match=r"shape \[4, 3\]; the config asks for \[3, 4\]"):
        source.get("m", (3, 4))
    with pytest.raises(CheckpointError, match="3 equal parts"):
        source.get_shard("m", (4, 3), Shard(0, 0, 3))
    part = source.get_shard("m", (4, 3), Shard(0, 1, 2))
    assert isinstance(part, torch.Tensor)
    assert part.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert source.get_shard("m", (4, 3), Shard(1, 2, 3)).tolist() == [[2], [5], [8], [11]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("total", "size", "unit", "widths"),
    [
        (2880, 4, 32, [704, 736, 704, 736]),
        (2880, 2, 32, [1440, 1440]),
        (2880, 1, 32, [2880]),
        (40, 4, 32, [10, 10, 10, 10]),
        (64, 4, 32, [16, 16, 16, 16]),
        (96, 3, 0, [32, 32, 32]),
    ],
)
def test_shards_cut_no_unit_where_each_can_have_one(total: int, size: int, unit: int, widths: list[int]) -> None:
    spans = [Shard(0, rank, size, unit).span(total) for rank in range(size)]
    assert [width for _, width in spans] == widths
    assert [begin for begin, _ in spans] == [sum(widths[:rank]) for rank in range(size)]

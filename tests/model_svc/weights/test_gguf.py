"""GGUF: what llama.cpp's converter did is undone exactly; hostile headers cost no time, no memory and no process."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from model_svc.quant.dequantized import Dequantized
from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf import GgufSource
from model_svc.weights.gguf_header import read_header
from model_svc.weights.source import Shard
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.tensor import QuantizedTensor
from tests.model_svc.weights.gguf_files import permuted, tiny_llama, write_llama

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def head(num_tensors: int = 0, num_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


def key(name: str, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return (
        text(name) + struct.pack("<I", count) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)
    )


DATA = b"\0" * 4096
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short": (b"GG", "not a GGUF file"),
    "other_magic": (head(magic=b"GGML"), "not a GGUF file"),
    "version_0": (head(version=0), "version 0"),
    "version_99": (head(version=99), "version 99"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "keys_2_60": (head(num_keys=1 << 60) + DATA, "cannot be in a file"),
    "tensors_2_60": (head(num_tensors=1 << 60) + DATA, "cannot be in a file"),
    "tensors_more_than_fit": (head(num_tensors=1 << 17) + DATA, "cannot be in a file"),
    "key_length_2_48": (head(num_keys=1) + struct.pack("<Q", 1 << 48) + DATA, "cannot be in a file"),
    "key_twice": (head(num_keys=2) + key("a", U8, b"\1") * 2 + DATA, "stands twice"),
    "key_not_utf8": (head(num_keys=1) + text(b"\xff\xff") + struct.pack("<I", U8) + DATA, "not UTF-8"),
    "value_type_77": (head(num_keys=1) + key("a", 77, DATA), "unknown value type 77"),
    "string_2_50": (head(num_keys=1) + key("a", STRING, struct.pack("<Q", 1 << 50)) + DATA, "cannot be in a file"),
    "array_2_40": (head(num_keys=1) + key("a", ARRAY, array(U32, 1 << 40)) + DATA, "cannot be in a file"),
    "bytes_array_2_62": (head(num_keys=1) + key("a", ARRAY, array(U8, 1 << 62)) + DATA, "cannot be in a file"),
    "strings_2_40": (head(num_keys=1) + key("a", ARRAY, array(STRING, 1 << 40)) + DATA, "cannot be in a file"),
    "string_in_array_2_40": (
        head(num_keys=1) + key("a", ARRAY, array(STRING, 2, text("ok") + struct.pack("<Q", 1 << 40))) + DATA,
        "longer than the file",
    ),
    "nested_array": (head(num_keys=1) + key("a", ARRAY, array(ARRAY, 3)) + DATA, "nested type"),
    "no_dims": (head(num_tensors=1) + tensor("t", ()) + DATA, "0 dimensions"),
    "five_dims": (head(num_tensors=1) + tensor("t", (1,) * 5) + DATA, "5 dimensions"),
    "dims_2_31": (head(num_tensors=1) + tensor("t", (1,), num_dims=1 << 31) + DATA, "dimensions"),
    "dim_zero": (head(num_tensors=1) + tensor("t", (0, 4)) + DATA, "cannot be in this file"),
    "dim_overflow": (head(num_tensors=1) + tensor("t", (1 << 40, 1 << 40)) + DATA, "cannot be in this file"),
    "unknown_tensor_type": (head(num_tensors=1) + tensor("t", (32,), kind=99) + DATA, "type 99"),
    "half_a_block": (head(num_tensors=1) + tensor("t", (33,), kind=2) + DATA, "no whole Q4_0 blocks"),
    "outside": (head(num_tensors=1) + tensor("t", (64,), offset=1 << 40) + DATA, "cut off"),
    "overflowing_offset": (head(num_tensors=1) + tensor("t", (64,), offset=(1 << 64) - 32) + DATA, "cut off"),
    "unaligned": (head(num_tensors=1) + tensor("t", (4,), offset=8) + DATA, "not aligned"),
    "overlap": (head(num_tensors=2) + tensor("t", (64,)) + tensor("u", (4,), offset=32) + DATA, "overlaps 't'"),
    "tensor_twice": (head(num_tensors=2) + tensor("t", (8,)) + tensor("t", (8,), offset=32) + DATA, "stands twice"),
    "alignment_zero": (head(0, 1) + key("general.alignment", U32, struct.pack("<I", 0)) + DATA, "power of two"),
    "alignment_one": (head(0, 1) + key("general.alignment", U32, struct.pack("<I", 1)) + DATA, "power of two from 8"),
    "alignment_text": (head(0, 1) + key("general.alignment", STRING, text("32")) + DATA, "power of two"),
}


@pytest.fixture
def bounded() -> Iterator[None]:
    """Fails a test that takes 4 MB."""
    tracemalloc.start()
    yield
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_at_once_with_file_and_fault_named(tmp_path: Path, name: str) -> None:
    content, fault = HOSTILE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=fault) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path / "absent.gguf")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    extra: dict[str, Any] = {"tokenizer.ggml.tokens": ["a", "b"], "general.name": "tiny"}
    write_llama(path, tiny_llama(), "Q8_0", **extra)
    content = path.read_bytes()
    read_header(path)
    cut = tmp_path / "cut.gguf"
    for length in (*range(0, 4096, 64), len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            read_header(cut)


def test_a_vocabulary_of_300_000_tokens_is_read(tmp_path: Path) -> None:
    count = 300_000
    tokens = b"".join(text(f"token{n}") for n in range(count))
    merges = b"".join(text(f"tok en{n}") for n in range(count))
    path = tmp_path / "wide.gguf"
    path.write_bytes(
        head(num_keys=2)
        + key("tokenizer.ggml.tokens", ARRAY, array(STRING, count, tokens))
        + key("tokenizer.ggml.merges", ARRAY, array(STRING, count, merges))
    )
    header = read_header(path)
    assert header.metadata["tokenizer.ggml.tokens"][299_999] == "token299999"


def test_the_header_says_what_the_gguf_package_says(smollm2_path: Path) -> None:
    path = smollm2_path / "model.gguf"
    ours = read_header(path)
    theirs = gguf.GGUFReader(path)
    assert {name: (item.offset, item.num_bytes, item.shape) for name, item in ours.tensors.items()} == {
        item.name: (item.data_offset, item.n_bytes, tuple(int(dim) for dim in reversed(item.shape)))
        for item in theirs.tensors
    }
    for name in ("llama.rope.freq_base", "general.name", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.token_type"):
        assert ours.metadata[name] == theirs.fields[name].contents()
    assert ours.metadata["tokenizer.ggml.tokens"][4093] == "user"


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_tensors_come_back_under_hugging_face_names_and_in_their_row_order(tmp_path: Path, quant: str) -> None:
    model = tiny_llama()
    write_llama(tmp_path / "model.gguf", model, quant)
    source = GgufSource(tmp_path / "model.gguf")
    kind = gguf.GGMLQuantizationType[quant]
    for name, wanted in model.state_dict().items():
        data = wanted.float().numpy()
        if data.ndim == 2:
            data = gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind)
        np.testing.assert_array_equal(source.get(name, tuple(wanted.shape)).float().numpy(), data, err_msg=name)
    assert source.unused() == frozenset()


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.input_layernorm.weight"])
def test_a_norm_that_is_stored_in_blocks_comes_as_numbers(tmp_path: Path, name: str) -> None:
    model = tiny_llama()
    write_llama(tmp_path / "model.gguf", model, "Q4_0", norms="Q8_0")
    found = GgufSource(tmp_path / "model.gguf").get_shard(name, (64,))
    kind = gguf.GGMLQuantizationType.Q8_0
    wanted = gguf.quants.dequantize(gguf.quants.quantize(model.state_dict()[name].numpy(), kind), kind)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_blocks_stay_blocks_and_permuted_rows_are_put_back_as_blocks(tmp_path: Path) -> None:
    model = tiny_llama()
    write_llama(tmp_path / "model.gguf", model, "Q4_1")
    stored = GgufSource(tmp_path / "model.gguf").get_shard("model.layers.1.self_attn.k_proj.weight", (32, 64))
    assert isinstance(stored, BlockTensor)
    assert stored.type.name == "Q4_1"
    assert stored.blocks.shape == (32, 2 * 20)
    weight = model.state_dict()["model.layers.1.self_attn.k_proj.weight"].numpy()
    assert not np.array_equal(permuted(weight, 2), weight)
    packed = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q4_1)
    assert torch.equal(stored.blocks, torch.from_numpy(packed))


def write_changed(path: Path, old: bytes, new: bytes) -> None:
    """Write a model of which one place is changed."""
    write_llama(path, tiny_llama())
    raw = path.read_bytes()
    assert raw.count(old) == 1
    path.write_bytes(raw.replace(old, new) + bytes(32))  # data begins later behind a longer header


def num_heads(kind: int, value: bytes) -> bytes:
    return key("llama.attention.head_count", kind, value)


@pytest.mark.parametrize("heads", [3, 1 << 31])
def test_rows_that_are_no_pairs_of_heads_are_refused(tmp_path: Path, heads: int) -> None:
    path = tmp_path / "model.gguf"
    write_changed(path, num_heads(U32, struct.pack("<I", 4)), num_heads(U32, struct.pack("<I", heads)))
    with pytest.raises(CheckpointError, match="no pairs of"):
        GgufSource(path).get("model.layers.0.self_attn.q_proj.weight", (64, 64))


@pytest.mark.parametrize("told", [3, 4, 0xFFFFFFFF])
def test_each_expert_is_a_tensor_if_there_are_as_many_as_the_file_says(tmp_path: Path, told: int) -> None:
    numbers = np.random.default_rng(1).standard_normal((3, 2, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(str(tmp_path / "experts.gguf"), "qwen3moe")
    writer.add_head_count(2)
    writer.add_expert_count(told)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blk.1.ffn_up_exps.weight", gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = GgufSource(tmp_path / "experts.gguf")
    if told != 3:
        assert source.names() == {"model.layers.1.mlp.experts.{}.up_proj.weight"}  # which nobody asks for
        return
    for expert in range(3):
        stored = source.get_shard(f"model.layers.1.mlp.experts.{expert}.up_proj.weight", (2, 64))
        assert isinstance(stored, BlockTensor)
        np.testing.assert_allclose(stored.dequantize().numpy(), numbers[expert], atol=0.02)
    assert not source.unused()


@pytest.mark.parametrize(("kind", "value"), [(U32, struct.pack("<I", 0)), (I32, struct.pack("<i", -1))])
def test_no_heads_are_refused_and_not_taken_for_rows_in_order(tmp_path: Path, kind: int, value: bytes) -> None:
    path = tmp_path / "model.gguf"
    write_changed(path, num_heads(U32, struct.pack("<I", 4)), num_heads(kind, value))
    with pytest.raises(CheckpointError, match="at least 1"):
        GgufSource(path)


def test_yes_is_no_count(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(head(num_keys=1) + key("a", BOOL, b"\1"))
    with pytest.raises(CheckpointError, match="'a' is not a int"):
        read_header(path).value("a", int)


def test_two_tensors_of_one_name_of_ours_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_changed(path, text("blk.0.attn_norm.weight"), text("model.norm.weight"))
    with pytest.raises(CheckpointError, match="are both 'model\\.norm\\.weight'"):
        GgufSource(path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process's memory")
def test_matrices_of_each_head_come_as_blocks_and_a_rank_takes_those_of_its_heads(tmp_path: Path) -> None:
    numbers, kind = np.random.default_rng(5).normal(size=(4, 5, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(numbers, kind)
    writer = gguf.GGUFWriter(str(tmp_path / "tiny.gguf"), "deepseek2")
    writer.add_head_count(4)
    writer.add_tensor("blk.0.attn_k_b.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    name = "model.layers.0.self_attn.k_b_proj.weight"
    stored = GgufSource(tmp_path / "tiny.gguf").get_shard(name, (4, 5, 64), Shard(0, 1, 2))
    found = Dequantized(torch.float32, torch.device("cpu")).dense(stored)
    assert torch.equal(found, torch.from_numpy(gguf.quants.dequantize(blocks, kind)[2:]))


def test_a_loaded_model_holds_its_packed_weights_and_not_the_file_as_well(smollm2_path: Path) -> None:
    path = smollm2_path / "model.gguf"
    source = GgufSource(path)
    views = [source.get_shard(name, shape) for name, shape in source.shapes.items()]
    raw = [view.stored if isinstance(view, QuantizedTensor) else view for view in views]
    before = [float(tensor.double().sum()) for tensor in raw]
    assert _resident_kb(path) > 50_000
    source.release()
    assert _resident_kb(path) == 0
    assert [float(tensor.double().sum()) for tensor in raw] == before


def _resident_kb(path: Path) -> int:
    """Return how much of a mapped file is in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = 0
    for line in lines:
        if line.endswith(str(path.resolve())):
            found += next(int(field.split()[1]) for field in lines if field.startswith("Rss:"))
    return found

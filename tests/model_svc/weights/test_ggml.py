"""Dequantization is checked against the `gguf` package: whole random blocks, every bit pattern of the scales."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as oracle

from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.ggml_types import BY_NAME

QUANTIZED = sorted(set(BY_NAME) - {"F32", "F16", "BF16"})


def random_blocks(name: str, rows: int, blocks: int) -> np.ndarray:
    """Random bytes in which no scale is inf or nan (they would hide faults in the rest)."""
    kind = BY_NAME[name]
    raw = np.random.default_rng(7).integers(0, 256, (rows, blocks, kind.num_bytes), dtype=np.uint8)
    halves = {"Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,), "MXFP4": ()}.get(name, (0, 2))
    for at in halves:
        raw[:, :, at + 1] &= 0xBF  # the exponent's top bit
    if name == "MXFP4":
        raw[:, 0, 0] = np.arange(rows)  # the two smallest are subnormal
        raw[:, :, 0] = np.minimum(raw[:, :, 0], 252)  # larger ones may be infinite
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", QUANTIZED)
def test_blocks_become_the_numbers_of_the_gguf_package(name: str) -> None:
    kind = BY_NAME[name]
    raw = random_blocks(name, rows=33, blocks=5)
    expected = oracle(raw, gguf.GGMLQuantizationType[name])
    ours = BlockTensor(torch.from_numpy(raw), (33, 5 * kind.values), kind).dequantize()
    assert ours.shape == (33, 5 * kind.values)
    np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("name", QUANTIZED)
def test_block_sizes_are_those_of_the_gguf_package(name: str) -> None:
    kind = BY_NAME[name]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (kind.values, kind.num_bytes)
    assert gguf.GGMLQuantizationType[name] == kind.code


def test_rows_and_columns_of_blocks_are_rows_and_columns_of_numbers() -> None:
    kind = BY_NAME["Q4_1"]
    whole = BlockTensor(torch.from_numpy(random_blocks("Q4_1", 8, 4)), (8, 128), kind)
    numbers = whole.dequantize()
    assert torch.equal(whole.rows(torch.tensor([5, 0, 3])).dequantize(), numbers[[5, 0, 3]])
    assert torch.equal(whole.columns(32, 96).dequantize(), numbers[:, 32:96])
    with pytest.raises(ValueError, match="cut a block"):
        whole.columns(16, 48)


def test_a_long_tensor_is_dequantized_piece_by_piece_into_the_given_dtype() -> None:
    kind = BY_NAME["Q8_0"]
    raw = random_blocks("Q8_0", 2000, 20)
    tensor = BlockTensor(torch.from_numpy(raw), (2000, 640), kind)
    expected = torch.from_numpy(oracle(raw, gguf.GGMLQuantizationType.Q8_0))
    assert torch.equal(tensor.dequantize(torch.bfloat16), expected.to(torch.bfloat16))

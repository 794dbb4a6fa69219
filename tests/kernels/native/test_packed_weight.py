"""Repacking GGML blocks into tiles loses nothing, and refuses what tiles cannot hold."""

import pytest
import torch

from kernels.embedding import embedding
from kernels.native.packed_weight import FORMATS, PackedWeight, packable
from kernels.quantized_linear import quantized_linear
from model_svc.weights.stored.ggml import dequantize
from tests.kernels.native.blocks import random_blocks


@pytest.mark.parametrize("format_name", FORMATS)
def test_packing_loses_nothing(isa: str, format_name: str) -> None:
    raw = random_blocks(format_name, 45, 768)
    packed = PackedWeight([raw[:20], raw[20:21], raw[21:]], format_name, 768)
    assert packed.shape == (45, 768)
    assert torch.equal(packed.dequantize(), dequantize(raw, format_name))


def test_every_power_of_two_scales_a_block_of_4_bit_floats(isa: str) -> None:
    """2^-127 and 2^-126 are subnormal as halves; from 2^126 on not even 6 times them is a float."""
    powers = torch.arange(253)
    raw = torch.full((16, 16, 17), 0x22, dtype=torch.uint8)  # ones
    raw[:, :, 0].view(-1)[:253] = powers.byte()
    raw[15, 13:, 0] = 127
    packed = PackedWeight([raw.view(16, -1)], "MXFP4", 512)
    assert torch.equal(packed.dequantize(), dequantize(raw.view(16, -1), "MXFP4"))
    x = torch.zeros(253, 16, 32)
    x[powers, powers % 16, 5] = 2.0 ** (127 - powers).clamp(min=-100).float()
    found = quantized_linear(x.view(253, 512), [packed])[powers, powers // 16]
    torch.testing.assert_close(found, 2.0 ** (powers - 227).clamp(min=0).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("format_name", ["Q8_0", "Q6_K"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_taken_from_a_table_in_tiles(isa: str, format_name: str, dtype: torch.dtype) -> None:
    raw = random_blocks(format_name, 33, 256)
    packed = PackedWeight([raw], format_name, 256)
    rows = embedding(torch.tensor([32, 0, 5, -1, 33], dtype=dtype), packed, scale=3.0)
    assert torch.equal(rows[:3], dequantize(raw, format_name)[[32, 0, 5]] * 3.0)
    assert not rows[3:].any()


def test_rows_that_are_not_next_to_one_another_are_packed(isa: str) -> None:
    wide = random_blocks("Q4_1", 20, 128)
    packed = PackedWeight([wide[:, 20:60]], "Q4_1", 64)
    assert torch.equal(packed.dequantize(), dequantize(wide[:, 20:60].contiguous(), "Q4_1"))


def test_what_cannot_be_packed_is_refused() -> None:
    assert not packable("Q4_K", 128)
    assert not packable("F16", 128)
    assert packable("Q4_K", 512)
    with pytest.raises(ValueError, match="Q4_K rows of 128"):
        PackedWeight([], "Q4_K", 128)

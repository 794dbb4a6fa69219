"""Which experts stay at 4 or 8 bits on a GPU, and that they mean what their numbers mean there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from model_svc.layers.experts import Experts, ExpertsConfig
from model_svc.layers.loader import Loader
from model_svc.quant.dequantized import DenseExperts, Dequantized
from model_svc.quant.float8 import Float8
from model_svc.quant.grouped import Grouped
from model_svc.quant.grouped_experts import GroupedBlocks
from model_svc.quant.kept import Kept
from model_svc.quant.method import QuantMethod
from model_svc.weights.random import RandomSource, float8, four_bits
from model_svc.weights.stored.grouped_tensor import GroupedTensor

CPU = torch.device("cpu")
CONFIG = ExpertsConfig(128, 256, num_experts=5, num_chosen=2, bias=True)
Stored = Callable[[Tensor], GroupedTensor]


def block(method: QuantMethod, stored: Stored) -> Experts:
    return Experts(Loader(RandomSource(tied=False, spread=0.3, stored=stored), method, "model.layers.0.mlp."), CONFIG)


def by_blocks(values: Tensor) -> GroupedTensor:
    """Return numbers as float8 with a scale for each 128 x 128; the router's with one for each row."""
    if len(values) % 128:
        return float8(values)
    tiles = values.view(-1, 128, values.shape[1] // 128, 128)
    scales = tiles.abs().amax((1, 3)) / 448
    spread = scales.repeat_interleave(128, 0)
    return GroupedTensor((values / spread.repeat_interleave(128, 1)).to(torch.float8_e4m3fn), spread, 0)


def in_another_order(values: Tensor) -> GroupedTensor:
    """Return 4 bits whose inputs are not sorted by group, as GPTQ's activation order leaves them."""
    plain = four_bits(values)
    groups = torch.arange(values.shape[1]) % plain.scales.shape[1]
    return GroupedTensor(plain.codes, plain.scales, 8, bits=4, group_of=groups)


@pytest.mark.parametrize(
    ("method", "stored", "kept"),
    [
        (Grouped(torch.float32, CPU), four_bits, True),
        (Grouped(torch.float32, CPU), float8, True),
        (Float8(torch.float32, CPU), float8, True),
        (Float8(torch.float32, CPU), by_blocks, True),
        (Float8(torch.float32, CPU), four_bits, False),
        (Kept(Dequantized(torch.float32, CPU)), float8, False),
    ],
)
def test_what_a_method_keeps_of_linear_layers_it_keeps_of_experts(
    method: QuantMethod, stored: Stored, kept: bool
) -> None:
    assert isinstance(block(method, stored)._blocks, GroupedBlocks if kept else DenseExperts)


def test_experts_in_activation_order_become_numbers() -> None:
    assert isinstance(block(Grouped(torch.float32, CPU), in_another_order)._blocks, DenseExperts)


@pytest.mark.parametrize("stored", [four_bits, by_blocks])
def test_the_block_means_what_its_numbers_mean_in_every_form(stored: Stored) -> None:
    x = torch.randn(5, 128)
    method, dense = Grouped(torch.float32, CPU), Dequantized(torch.float32, CPU)
    packed, wanted = block(method, stored), block(dense, stored)(x)
    assert method.num_bytes < dense.num_bytes / 3
    for form in ("reference", "triton"):
        with dispatch.forced(form):
            torch.testing.assert_close(packed(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("stored", [four_bits, float8, by_blocks])
@pytest.mark.parametrize("num_tokens", [1, 30, 300, 1000])
def test_compiled_kernels_give_what_the_numbers_give(stored: Stored, num_tokens: int) -> None:
    card, x = torch.device("cuda"), torch.randn(num_tokens, 128)
    wanted = block(Dequantized(torch.float32, CPU), stored)(x)
    found = block(Grouped(torch.bfloat16, card), stored)(x.to(card, torch.bfloat16)).cpu().float()
    rows = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(rows.median()) < 0.02  # where a choice was close, a token takes another expert

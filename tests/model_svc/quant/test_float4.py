"""Which experts stay 4 bit floats on a GPU, and that they mean what their numbers mean there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.activation import CLAMPED
from model_svc.layers.experts import Experts, ExpertsConfig
from model_svc.layers.loader import Loader
from model_svc.quant.dequantized import DenseExperts, Dequantized
from model_svc.quant.float4 import Float4Blocks
from model_svc.quant.float8 import Float8
from model_svc.quant.grouped import Grouped
from model_svc.quant.kept import Kept
from model_svc.quant.method import QuantMethod
from model_svc.runner.precision import Precision, precision_of
from model_svc.weights.random import RandomSource, float4, four_bits
from model_svc.weights.stored.block_tensor import BlockTensor
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.tiny import EXPERTS, tiny_llama

CPU = torch.device("cpu")
CONFIG = ExpertsConfig(96, 160, num_experts=6, num_chosen=3, act=CLAMPED, bias=True)


def block(method: QuantMethod, stored: object = float4) -> Experts:
    source = RandomSource(tied=False, spread=0.3, stored=stored)  # type: ignore[arg-type]
    return Experts(Loader(source, method, "model.layers.0.mlp."), CONFIG)


def kept(dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> Kept:
    return Kept(Dequantized(dtype, device))


@pytest.mark.parametrize("method", [kept(), Grouped(torch.float32, CPU), Float8(torch.float32, CPU)])
def test_every_method_of_a_card_keeps_them(method: QuantMethod) -> None:
    assert isinstance(block(method)._blocks, Float4Blocks)
    assert method.num_bytes < block_bytes() / 3


def block_bytes() -> int:
    """What numbers take in float32."""
    dense = Dequantized(torch.float32, CPU)
    block(dense)
    return dense.num_bytes


@pytest.mark.parametrize("num_tokens", [1, 20])
def test_the_block_means_what_its_numbers_mean_in_every_form(num_tokens: int) -> None:
    x = torch.randn(num_tokens, 96)
    wanted, packed = block(Dequantized(torch.float32, CPU))(x), block(kept())
    for form in ("reference", "triton"):
        with dispatch.forced(form):
            torch.testing.assert_close(packed(x), wanted, rtol=1e-4, atol=1e-4)


def test_experts_of_another_form_or_with_scales_that_no_kernel_takes_become_numbers() -> None:
    def large(values: Tensor) -> BlockTensor:
        stored = float4(values)
        stored.blocks[-1, 0] = 129
        return stored

    for stored in (four_bits, large):
        source = RandomSource(tied=False, stored=stored)
        place = Loader(source, kept(), "model.layers.0.mlp.")
        assert isinstance(Experts(place, ExpertsConfig(128, 128, num_experts=4, num_chosen=2))._blocks, DenseExperts)


def test_what_asks_for_a_dtype_gets_numbers() -> None:
    assert type(Precision(torch.bfloat16, float4=True).method(CPU, None)) is Kept
    assert type(precision_of("bfloat16", CPU).method(CPU, None)) is Dequantized


def test_random_weights_may_be_4_bit_floats() -> None:
    values = torch.randn(64, 256)
    stored = float4(values)
    assert stored.blocks.nbytes == values.numel() * 17 // 32
    assert float((stored.dequantize() - values).norm() / values.norm()) < 0.15
    assert torch.equal(float4(stored.dequantize()).dequantize(), stored.dequantize())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_compiled_kernels_give_the_logits_of_the_numbers() -> None:
    card, ids = "cuda", [n % 60 for n in range(300)]
    shape = {"hidden_size": 128, "head_dim": 32, "max_position_embeddings": 512, **EXPERTS, "moe_intermediate_size": 96}
    packed, exact = (
        tiny_llama(where, dtype, float4=True, **shape)
        for where, dtype in ((card, torch.bfloat16), ("cpu", torch.float32))
    )
    for counts in ((7, 1, 1), (300,)):
        seqs = [Tracked(0, list(ids)) for _ in range(2)]
        drivers = ModelDriver(packed, num_blocks=80, dtype=torch.bfloat16), ModelDriver(exact, num_blocks=80)
        for count in counts:
            found, wanted = (driver.logits((seq, count))[0].cpu() for driver, seq in zip(drivers, seqs, strict=True))
            assert float((found - wanted).norm() / wanted.norm()) < 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_auto_keeps_them_on_every_card() -> None:
    card = torch.device("cuda")
    assert isinstance(precision_of("auto", card).method(card, None), Kept)
    assert type(precision_of("bfloat16", card).method(card, None)) is Dequantized

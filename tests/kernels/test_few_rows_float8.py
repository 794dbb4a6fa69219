"""The products of few rows on float8 weights: the same as on the numbers that these stand for."""

import pytest
import torch
from torch import Tensor

from kernels import activation
from kernels.few_rows import RmsNormWeights, Rotation, linear_add, linear_into, norm_gate, norm_linear, norm_qkv, suits
from kernels.float8_weight import Float8Weight
from kernels.language import cdiv
from tests.kernels.close import Close

FORMS = pytest.mark.parametrize("by_blocks", [False, True], ids=["channels", "blocks"])


def dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter cannot multiply bf16


def weight_of(F: int, E: int, device: str, *, by_blocks: bool) -> tuple[Float8Weight, Tensor]:
    """Return a weight with every code that is a number among its codes, and its float64 numbers."""
    raw = torch.randint(0, 127, (F, E), dtype=torch.uint8) | torch.randint(0, 2, (F, E), dtype=torch.uint8) << 7
    codes = raw.view(torch.float8_e4m3fn)
    shape = (cdiv(F, 128), cdiv(E, 128)) if by_blocks else (F,)
    scales = torch.rand(shape) * 0.01 + 0.001
    wide = scales.double()[:, None]
    if by_blocks:
        wide = scales.double().repeat_interleave(128, 0)[:F].repeat_interleave(128, 1)[:, :E]
    return Float8Weight(codes.to(device), scales.to(device)), codes.double() * wide


def normed(x: Tensor, norm: RmsNormWeights) -> Tensor:
    wide = x.cpu().double()
    scale = norm.weight.cpu().double() + norm.offset
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * scale


def made(T: int, E: int, device: str) -> tuple[Tensor, RmsNormWeights]:
    x = torch.randn(T, E, device=device, dtype=dtype(device))
    return x, RmsNormWeights(torch.rand(E, device=device, dtype=dtype(device)) + 0.5, 1e-5, 0.5)


@FORMS
@pytest.mark.parametrize("T", [1, 2, 17, 40])
def test_queries_keys_and_values_are_normed_turned_and_stored(
    device: str, close: Close, T: int, by_blocks: bool
) -> None:
    H, K, D, B, E = 8, 4, 32, 4, 512
    x, norm = made(T, E, device)
    weight, numbers = weight_of((H + 2 * K) * D, E, device, by_blocks=by_blocks)
    arrived = torch.zeros(32, dtype=torch.int32, device=device)
    angle = torch.rand(64, D // 2, device=device) * 6
    keys, values = torch.zeros(2, 32, B, K, D, device=device, dtype=x.dtype)
    slots, positions = torch.randperm(32 * B, device=device)[:T], torch.randint(64, (T,), device=device)
    out = norm_qkv(x, norm, weight, D, Rotation(angle.cos(), angle.sin(), positions, keys, values, slots), arrived)
    assert not arrived.any()
    heads = (normed(x, norm) @ numbers.T).view(T, -1, D)
    a, b = heads[:, : H + K, : D // 2].clone(), heads[:, : H + K, D // 2 :].clone()
    cos, sin = (table[positions].cpu().double()[:, None] for table in (angle.cos(), angle.sin()))
    heads[:, : H + K] = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    close(out.view(T, -1, D), heads, loose=2)
    close(keys.view(-1, K, D)[slots], heads[:, H : H + K], loose=2)
    close(values.view(-1, K, D)[slots], heads[:, H + K :], loose=2)


@FORMS
@pytest.mark.parametrize(("T", "F"), [(1, 1280), (3, 256), (33, 1280)])
def test_gate_and_up_meet_in_one_pass(device: str, close: Close, T: int, F: int, by_blocks: bool) -> None:
    x, norm = made(T, 208, device)
    weight, numbers = weight_of(F, 208, device, by_blocks=by_blocks)
    truth = activation.reference(normed(x, norm) @ numbers.T, 0)
    close(norm_gate(x, norm, weight, 0), truth, loose=3)


@FORMS
@pytest.mark.parametrize("T", [1, 3])
def test_a_product_behind_a_norm_has_its_bias(device: str, close: Close, T: int, by_blocks: bool) -> None:
    x, norm = made(T, 208, device)
    weight, numbers = weight_of(512, 208, device, by_blocks=by_blocks)
    bias = torch.randn(512, device=device, dtype=x.dtype)
    close(norm_linear(x, norm, weight, bias), normed(x, norm) @ numbers.T + bias.cpu().double(), loose=2)


@FORMS
@pytest.mark.parametrize(("T", "E"), [(1, 1040), (4, 48), (40, 1040)])
def test_a_product_is_added_or_written(device: str, close: Close, T: int, E: int, by_blocks: bool) -> None:
    x, _ = made(T, E, device)
    weight, numbers = weight_of(256, E, device, by_blocks=by_blocks)
    before = torch.randn(T, 256, device=device, dtype=x.dtype)
    product = x.cpu().double() @ numbers.T
    residual, arrived = before.clone(), torch.zeros(16, dtype=torch.int32, device=device)
    linear_add(x, weight, residual, arrived)
    close(residual, before.cpu().double() + product)
    assert not arrived.any()
    out = torch.full((T, 256), float("nan"), device=device)
    linear_into(x, weight, out)
    close(out, product)


@FORMS
def test_weights_with_tiles_of_many_rows_for_every_processor(device: str, close: Close, by_blocks: bool) -> None:
    x, norm = made(3, 2048, device)
    weight, numbers = weight_of(2048, 2048, device, by_blocks=by_blocks)
    residual = torch.zeros(3, 2048, device=device, dtype=x.dtype)
    arrived = torch.zeros(128, dtype=torch.int32, device=device)
    linear_add(x, weight, residual, arrived, norm)
    close(residual, x.cpu().double() @ numbers.T)
    assert not arrived.any()
    x, norm = made(3, 128, device)
    weight, numbers = weight_of(16384, 128, device, by_blocks=by_blocks)
    close(norm_gate(x, norm, weight, 0), activation.reference(normed(x, norm) @ numbers.T, 0), loose=3)


@FORMS
def test_a_row_too_long_to_be_held_is_added_or_written(device: str, close: Close, by_blocks: bool) -> None:
    E = 8208
    x, _ = made(1, E, device)
    weight, numbers = weight_of(256, E, device, by_blocks=by_blocks)
    residual = torch.randn(1, 256, device=device, dtype=x.dtype)
    truth = residual.cpu().double() + x.cpu().double() @ numbers.T
    linear_add(x, weight, residual)
    close(residual, truth)
    out = torch.full((1, 256), float("nan"), device=device)
    linear_into(x, weight, out)
    close(out, x.cpu().double() @ numbers.T)


@FORMS
@pytest.mark.parametrize("T", [2, 20])
def test_a_norm_is_begun_by_the_product_before_it(device: str, close: Close, T: int, by_blocks: bool) -> None:
    x, _ = made(T, 1024, device)
    _, norm = made(T, 256, device)
    weight, numbers = weight_of(256, 1024, device, by_blocks=by_blocks)
    gate, gate_numbers = weight_of(256, 256, device, by_blocks=by_blocks)
    total = torch.randn(T, 256, device=device, dtype=x.dtype)
    truth = total.cpu().double() + x.cpu().double() @ numbers.T
    begun = linear_add(x, weight, total, torch.zeros(16, dtype=torch.int32, device=device), norm)
    close(total, truth)
    out = norm_gate(total, norm, gate, 0, begun)
    close(out, activation.reference(normed(total, norm) @ gate_numbers.T, 0), loose=3)


def test_weights_that_do_not_fit_are_named() -> None:
    codes = torch.zeros(256, 144).to(torch.float8_e4m3fn)
    assert suits(Float8Weight(codes, torch.ones(2, 2)))
    assert not suits(Float8Weight(codes[:128], torch.ones(1, 2)))  # gate and up would share a block
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        Float8Weight(codes.float(), torch.ones(256))
    with pytest.raises(ValueError, match="scales have shape"):
        Float8Weight(codes, torch.ones(2, 3))
    with pytest.raises(ValueError, match="float32"):
        Float8Weight(codes, torch.ones(256, dtype=torch.float16))

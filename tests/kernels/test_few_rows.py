"""Products of few rows with norm, rotation, store, gate and addition inside, against the ops apart."""

import pytest
import torch
from torch import Tensor

from kernels import activation
from kernels.few_rows import (
    MAX_ROWS,
    RmsNormWeights,
    Rotation,
    linear_add,
    linear_into,
    norm_gate,
    norm_linear,
    norm_qkv,
)
from tests.kernels.close import Close

H, K, D, B, E = 4, 2, 16, 4, 48


def dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter cannot multiply bf16


def normed(x: Tensor, norm: RmsNormWeights) -> Tensor:
    wide = x.cpu().double()
    scale = norm.weight.cpu().double() + norm.offset
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * scale


def made(T: int, F: int, device: str, size: int = E) -> tuple[Tensor, RmsNormWeights, Tensor]:
    x = torch.randn(T, size, device=device, dtype=dtype(device))
    norm = RmsNormWeights(torch.rand(size, device=device, dtype=dtype(device)) + 0.5, 1e-5, 0.5)
    return x, norm, torch.randn(F, size, device=device, dtype=dtype(device))


@pytest.mark.parametrize("T", [1, 2, 5, 16, 17, 40])
def test_queries_keys_and_values_are_normed_turned_and_stored(device: str, close: Close, T: int) -> None:
    x, norm, weight = made(T, (H + 2 * K) * D, device, 512)  # split, from 17 rows on
    arrived = torch.zeros(8, dtype=torch.int32, device=device)
    angle = torch.rand(64, D // 2, device=device) * 6
    keys, values = torch.zeros(2, 32, B, K, D, device=device, dtype=x.dtype)
    slots = torch.randperm(32 * B, device=device)[:T]
    slots[T // 2] = -1
    positions = torch.randint(64, (T,), device=device)
    out = norm_qkv(x, norm, weight, D, Rotation(angle.cos(), angle.sin(), positions, keys, values, slots), arrived)
    assert not arrived.any()
    heads = (normed(x, norm) @ weight.cpu().double().T).view(T, -1, D)
    a, b = heads[:, : H + K, : D // 2].clone(), heads[:, : H + K, D // 2 :].clone()
    cos, sin = (table[positions].cpu().double()[:, None] for table in (angle.cos(), angle.sin()))
    heads[:, : H + K] = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    close(out.view(T, -1, D), heads, loose=2)
    for cache, part in ((keys, heads[:, H : H + K]), (values, heads[:, H + K :])):
        truth = torch.zeros(32 * B, K, D, dtype=torch.float64)
        kept = slots.cpu() >= 0
        truth[slots.cpu()[kept]] = part[kept]
        close(cache.view(-1, K, D), truth, loose=2)


@pytest.mark.parametrize("T", [1, 3, 33])
@pytest.mark.parametrize("act", [0, 1, 2, 3])
def test_gate_and_up_meet_in_one_pass(device: str, close: Close, T: int, act: int) -> None:
    x, norm, weight = made(T, 96, device)
    truth = activation.reference(normed(x, norm) @ weight.cpu().double().T, act)
    close(norm_gate(x, norm, weight, act), truth, loose=3)


@pytest.mark.parametrize("T", [1, 4, 64])
@pytest.mark.parametrize("size", [48, 1040])
def test_a_product_is_added_or_written(device: str, close: Close, T: int, size: int) -> None:
    x, _, weight = made(T, 80, device, size)
    before = torch.randn(T, 80, device=device, dtype=x.dtype)
    residual = before.clone()
    product = x.cpu().double() @ weight.cpu().double().T
    linear_add(x, weight, residual)
    close(residual, before.cpu().double() + product)
    arrived = torch.zeros(80, dtype=torch.int32, device=device)
    residual = before.clone()
    linear_add(x, weight, residual, arrived)
    close(residual, before.cpu().double() + product)
    assert not arrived.any()
    out = torch.full((T, 80), float("nan"), device=device)
    linear_into(x, weight, out)
    close(out, product)


@pytest.mark.parametrize(("T", "biased"), [(1, True), (3, True), (20, False)])
def test_a_product_behind_a_norm_is_written_and_one_with_a_bias_is_added(
    device: str, close: Close, T: int, biased: bool
) -> None:
    x, norm, weight = made(T, 80, device, 1024)
    bias = torch.randn(80, device=device, dtype=x.dtype) * 30 if biased else None
    offset = 0 if bias is None else bias.cpu().double()
    arrived = torch.zeros(5, dtype=torch.int32, device=device)
    close(norm_linear(x, norm, weight, bias, arrived), normed(x, norm) @ weight.cpu().double().T + offset, loose=2)
    assert not arrived.any()
    before = torch.randn(T, 80, device=device, dtype=x.dtype)
    residual = before.clone()
    linear_add(x, weight, residual, arrived, bias=bias)
    close(residual, before.cpu().double() + x.cpu().double() @ weight.cpu().double().T + offset)


@pytest.mark.parametrize("T", [3, 40])
def test_weights_with_tiles_for_every_processor(device: str, close: Close, T: int) -> None:
    x, norm, weight = made(T, 8192, device, 128)  # 64 rows a tile without a split
    close(norm_gate(x, norm, weight, 0), activation.reference(normed(x, norm) @ weight.cpu().double().T, 0), loose=3)
    out = torch.full((T, 8192), float("nan"), device=device)
    linear_into(x, weight, out)
    close(out, x.cpu().double() @ weight.cpu().double().T)


@pytest.mark.parametrize("T", [1, 2, 20, 64])
def test_a_norm_is_begun_by_the_product_before_it(device: str, close: Close, T: int) -> None:
    x, _, weight = made(T, 128, device, 1024)
    _, norm, gate = made(T, 96, device, 128)
    total = torch.randn(T, 128, device=device, dtype=x.dtype)
    truth = total.cpu().double() + x.cpu().double() @ weight.cpu().double().T
    arrived = torch.zeros(8, dtype=torch.int32, device=device)
    begun = linear_add(x, weight, total, arrived, norm)
    close(total, truth)
    out = norm_gate(total, norm, gate, 0, begun)
    close(out, activation.reference(normed(total, norm) @ gate.cpu().double().T, 0), loose=3)


@pytest.mark.parametrize("T", [2, 20])
def test_a_split_sum_is_added_in_one_order(device: str, close: Close, T: int) -> None:
    x, _, weight = made(T, 128, device, 1024)
    before = torch.randn(T, 128, device=device, dtype=x.dtype)
    arrived = torch.zeros(8, dtype=torch.int32, device=device)
    results = []
    for _ in range(3):
        residual = before.clone()
        linear_add(x, weight, residual, arrived)
        results.append(residual)
        assert not arrived.any()
    close(results[0], before.cpu().double() + x.cpu().double() @ weight.cpu().double().T)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="weight"):
        linear_add(torch.zeros(1, 16), torch.zeros(4, 32), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="x has shape"):
        linear_add(torch.zeros(MAX_ROWS + 1, 16), torch.zeros(4, 16), torch.zeros(MAX_ROWS + 1, 4))
    with pytest.raises(ValueError, match="multiples of 16"):
        linear_add(torch.zeros(1, 16), torch.zeros(4, 16), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="residual"):
        linear_add(torch.zeros(1, 16), torch.zeros(16, 16), torch.zeros(2, 16))
    with pytest.raises(ValueError, match="arrived"):
        linear_add(torch.zeros(1, 16), torch.zeros(16, 16), torch.zeros(1, 16), torch.zeros(2))
    with pytest.raises(ValueError, match="bias"):
        linear_add(torch.zeros(1, 16), torch.zeros(16, 16), torch.zeros(1, 16), bias=torch.zeros(2))

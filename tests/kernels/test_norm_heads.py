"""Norms of heads, rotation and store behind a plain projection of few rows, against float64."""

import pytest
import torch
from torch import Tensor

from kernels.few_rows import Rotation
from kernels.float8_kv import DTYPE, KvScales
from kernels.norm_heads import HeadNorms, norm_heads
from tests.kernels.close import Close

B, BLOCKS, POSITIONS = 4, 9, 64


def rotation(T: int, K: int, D: int, R: int, like: Tensor) -> Rotation:
    angle = torch.rand(POSITIONS, R // 2, device=like.device) * 6
    keys, values = torch.zeros(2, BLOCKS, B, K, D, device=like.device, dtype=like.dtype)
    slots = torch.randperm(BLOCKS * B, device=like.device)[:T]
    slots[T // 2] = -1
    positions = torch.randint(POSITIONS, (T,), device=like.device)
    return Rotation(angle.cos(), angle.sin(), positions, keys, values, slots)


def truth(qkv: Tensor, D: int, K: int, turn: Rotation, norms: HeadNorms | None, interleaved: bool) -> Tensor:
    """Heads [T, H + 2K, D] in float64."""
    heads = qkv.cpu().double().view(qkv.shape[0], -1, D).clone()
    H = heads.shape[1] - 2 * K
    if norms is not None:
        for part, weight in zip((heads[:, :H], heads[:, H : H + K]), (norms.q, norms.k), strict=True):
            part *= torch.rsqrt(part.square().mean(-1, keepdim=True) + norms.eps) * (
                weight.cpu().double() + norms.offset
            )
    cos, sin = (table[turn.positions].cpu().double()[:, None] for table in (turn.cos, turn.sin))
    R = 2 * cos.shape[-1]
    first, second = (slice(0, R, 2), slice(1, R, 2)) if interleaved else (slice(R // 2), slice(R // 2, R))
    turned = heads[:, : H + K]
    a, b = turned[..., first].clone(), turned[..., second].clone()
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return heads


@pytest.mark.parametrize(
    ("T", "H", "K", "D", "R", "interleaved"),
    [(1, 4, 2, 16, 16, False), (5, 3, 3, 32, 16, False), (3, 5, 1, 20, 12, True), (7, 2, 1, 24, 24, False)],
)
@pytest.mark.parametrize("normed", [True, False])
def test_heads_are_normed_turned_and_stored(
    device: str, close: Close, T: int, H: int, K: int, D: int, R: int, interleaved: bool, normed: bool
) -> None:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    qkv = torch.randn(T, (H + 2 * K) * D, device=device, dtype=dtype) * 3
    turn = rotation(T, K, D, R, qkv)
    norms = None
    if normed:
        q, k = torch.rand(2, D, device=device, dtype=dtype) + 0.5
        norms = HeadNorms(q, k, eps=1e-2, offset=0.5)
    wanted = truth(qkv, D, K, turn, norms, interleaved)
    norm_heads(qkv, D, turn, norms, interleaved=interleaved)
    close(qkv.view(T, -1, D), wanted)
    kept = turn.slot_mapping.cpu() >= 0
    for cache, part in ((turn.k_cache, wanted[:, H : H + K]), (turn.v_cache, wanted[:, H + K :])):
        whole = torch.zeros(BLOCKS * B, K, D, dtype=torch.float64)
        whole[turn.slot_mapping.cpu()[kept]] = part[kept]
        close(cache.view(-1, K, D), whole)


def test_a_cache_in_8_bits_holds_codes_of_normed_keys(device: str) -> None:
    T, H, K, D = 3, 2, 1, 16
    qkv = torch.randn(T, (H + 2 * K) * D, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    turn = rotation(T, K, D, D, qkv)
    scales, ones = KvScales(0.25, 0.5), torch.ones(D, device=device, dtype=qkv.dtype)
    keys, values = (torch.zeros(BLOCKS, B, K, D, device=device, dtype=torch.uint8).view(DTYPE) for _ in range(2))
    turn = Rotation(turn.cos, turn.sin, turn.positions, keys, values, torch.arange(T, device=device), scales)
    norm_heads(qkv, D, turn, HeadNorms(ones, ones, 1e-6))
    heads = qkv.float().view(T, -1, D)
    for cache, part, scale in ((keys, heads[:, H : H + K], 0.25), (values, heads[:, H + K :], 0.5)):
        found = cache.float().view(-1, K, D)[:T] * scale
        assert float((found - part).abs().max() / part.abs().max()) < 0.05
        assert found.abs().sum() > 0


def test_wrong_arguments_are_named() -> None:
    turn = rotation(2, 1, 16, 16, torch.zeros(1))
    with pytest.raises(ValueError, match="qkv"):
        norm_heads(torch.zeros(2, 32), 16, turn)
    with pytest.raises(ValueError, match="heads of 16"):
        norm_heads(torch.zeros(2, 32), 8, turn)
    with pytest.raises(ValueError, match="norms"):
        norm_heads(torch.zeros(2, 64), 16, turn, HeadNorms(torch.ones(16), torch.ones(8), 1e-5))

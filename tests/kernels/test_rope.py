"""Rotation of queries and keys by position, in place, and fused with the store."""

import pytest
import torch
from torch import Tensor

from kernels.rope import rope, rope_store_kv
from kernels.store_kv import store_kv
from tests.kernels.close import Close


def tables(R: int, device: str, P: int = 64) -> tuple[Tensor, Tensor]:
    angle = torch.arange(P).double()[:, None] * 10000.0 ** (-torch.arange(0, R, 2).double() / R)
    return angle.cos().float().to(device), angle.sin().float().to(device)


def oracle(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotation by complex multiplication, in float64."""
    x, half = x.cpu().double(), cos.shape[1]
    turn = torch.complex(cos.cpu().double(), sin.cpu().double())[positions.cpu().long()][:, None]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, dim=-1)
    z = torch.complex(a.contiguous(), b.contiguous()) * turn
    y = torch.stack([z.real, z.imag], -1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], -1)
    return torch.cat([y, rest], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("H", "K", "D", "R"), [(9, 3, 64, 64), (4, 4, 80, 80), (2, 1, 96, 72), (8, 2, 128, 32), (1, 1, 256, 256)]
)
def test_queries_and_keys_are_turned_by_their_position(
    device: str, close: Close, H: int, K: int, D: int, R: int, interleaved: bool
) -> None:
    q, k = torch.randn(5, H, D, device=device), torch.randn(5, K, D, device=device)
    cos, sin = tables(R, device)
    positions = torch.randint(64, (5,), device=device)
    truth = [oracle(x, cos, sin, positions, interleaved) for x in (q, k)]
    rope(q, k, cos, sin, positions, interleaved=interleaved)
    close(q, truth[0])
    close(k, truth[1])


def test_views_of_a_fused_row_are_turned_in_place_and_their_neighbours_left_alone(device: str, close: Close) -> None:
    row = torch.randn(3, 8 * 64, device=device, dtype=torch.bfloat16)
    before = row.clone()
    cos, sin = tables(64, device)
    positions = torch.tensor([5, 0, 63], device=device, dtype=torch.int32)
    rope(row[:, :256].view(3, 4, 64), row[:, 256:384].view(3, 2, 64), cos, sin, positions)
    close(row[:, :384].view(3, 6, 64), oracle(before[:, :384].view(3, 6, 64), cos, sin, positions, False))
    assert torch.equal(row[:, 384:], before[:, 384:])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("K", "D", "R"), [(3, 64, 64), (2, 96, 48)])
def test_fused_store_leaves_what_the_two_ops_leave(
    device: str, close: Close, K: int, D: int, R: int, interleaved: bool
) -> None:
    q, k, v = (torch.randn(6, heads, D, device=device) for heads in (2 * K, K, K))
    cos, sin = tables(R, device)
    positions, slots = torch.arange(6, device=device) + 7, torch.tensor([3, 17, -1, 4, 0, 11], device=device)
    expected, got = torch.zeros(2, 2, 5, 4, K, D, device=device)
    q2, k2 = q.clone(), k.clone()
    rope(q2, k2, cos, sin, positions, interleaved=interleaved)
    store_kv(k2, v, expected[0], expected[1], slots)
    before = k.clone()
    rope_store_kv(q, k, v, cos, sin, positions, got[0], got[1], slots, interleaved=interleaved)
    close(q, q2.double())
    close(got[0], expected[0].double())
    assert torch.equal(got[1], expected[1])
    assert torch.equal(k, before)


def test_wrong_arguments_are_named() -> None:
    q, k, cos = torch.zeros(2, 4, 8), torch.zeros(2, 2, 8), torch.zeros(9, 4)
    positions = torch.zeros(2, dtype=torch.int64)
    for match, args in {
        "q has": (q[0], k, cos, cos, positions),
        "k has": (q, k[:1], cos, cos, positions),
        "cos has": (q, k, torch.zeros(9, 5), torch.zeros(9, 5), positions),
        "sin": (q, k, cos, cos[:3], positions),
        "positions": (q, k, cos, cos, positions.float()),
    }.items():
        with pytest.raises(ValueError, match=match):
            rope(*args)

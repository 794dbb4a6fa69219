"""What the kernels of `few_rows` share: the arguments of a call, the order of weight rows, the gate, the rotation."""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from kernels import dependent
from kernels.float8_kv import ONES, KvScales, stored
from kernels.float8_weight import Float8Weight, parts_of
from kernels.language import jit, tl

MAX_ROWS = 64
QKV, ADD, GATE, PLAIN = (tl.constexpr(n) for n in range(4))


@dataclass(frozen=True)
class RmsNormWeights:
    """The norm before a product: y = x / rms(x) * (offset + weight)."""

    weight: Tensor
    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class HalfNormed:
    """What a product that makes x leaves for the norm after it: x * (offset + weight) [T, E] without 1 / rms, and
    the sums of x^2 of each of its tiles, float32 [tiles, T]. The next product multiplies its result by 1 / rms."""

    scaled: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Rotation:
    """Where a step's keys and values go and how they are turned, as in `rope.rope_store_kv` (pairs d, d + D/2)."""

    cos: Tensor
    sin: Tensor
    positions: Tensor
    k_cache: Tensor
    v_cache: Tensor
    slot_mapping: Tensor
    scales: KvScales = ONES


class Product(NamedTuple):
    """The arguments of one call, as either launch wants them. `kind` is QKV, ADD, GATE or PLAIN."""

    x: Tensor
    weight: Tensor | Float8Weight
    out: Tensor
    kind: int
    norm: RmsNormWeights | None = None
    begun: HalfNormed | None = None
    head_dim: int = 2
    turn: Rotation | None = None
    act: int = 0
    arrived: Tensor | None = None
    then: RmsNormWeights | None = None
    bias: Tensor | None = None  # [F], of a product that is added or plain


def rotation(product: Product) -> tuple[Tensor | float, ...]:
    """Return tables, positions, caches and slots, their strides, and what keys and values are multiplied with.

    Something else where nothing is turned.
    """
    turn = product.turn
    if turn is None:
        return (product.x,) * 6 + (0,) * 4 + (1.0,) * 2
    return (
        turn.cos, turn.sin, turn.positions, turn.k_cache, turn.v_cache, turn.slot_mapping,
        turn.cos.stride(0), *turn.k_cache.stride()[:3], *turn.scales.inverse(turn.k_cache),
    )  # fmt: skip


def constants(product: Product) -> dict[str, Any]:
    """Return what both kernels are specialised by; on a GPU they start before the kernel before them has ended."""
    turn = product.turn
    heads, block_size = (1, 1) if turn is None else (turn.k_cache.shape[2], turn.k_cache.shape[1])
    common = {
        "KIND": product.kind, "D": product.head_dim, "KV_HEADS": heads, "B": block_size, "ACT": product.act,
        "SCALES": parts_of(product.weight)[2],
    }  # fmt: skip
    return common | dependent.launch(product.x)


@jit
def weight_row(n, F: tl.constexpr, KIND: tl.constexpr, D: tl.constexpr):
    """Row n of the order in which partners (dims d, d + D/2 of a head; gate and up) are neighbours."""
    pair, second = n // 2, n % 2
    if KIND == QKV:
        return pair // (D // 2) * D + pair % (D // 2) + second * (D // 2)
    if KIND == GATE:
        return pair + second * (F // 2)
    return n


@jit
def angles(cos_ptr, sin_ptr, table_stride, position, pair, F: tl.constexpr, D: tl.constexpr, KV_HEADS: tl.constexpr):
    """cos and sin of a pair; values are not turned."""
    turned = pair < F // 2 - KV_HEADS * (D // 2)
    at = position * table_stride + pair % (D // 2)
    return tl.load(cos_ptr + at, mask=turned, other=1.0), tl.load(sin_ptr + at, mask=turned, other=0.0)


@jit
def store_qkv(
    a, b, pair, token, live, cos, sin, slot, out_ptr, k_cache_ptr, v_cache_ptr, stride_n, stride_b, stride_h,
    k_over, v_over, F: tl.constexpr, D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Turn a pair, write it to the dense row, and keys and values to their slot of the cache."""
    HEADS: tl.constexpr = F // D - 2 * KV_HEADS
    head, d = pair // (D // 2), pair % (D // 2)
    x, y = (a * cos - b * sin).to(out_ptr.dtype.element_ty), (b * cos + a * sin).to(out_ptr.dtype.element_ty)
    to = out_ptr + token * F + head * D + d
    tl.store(to, x, mask=live)
    tl.store(to + D // 2, y, mask=live)
    kept = live & (slot >= 0)
    at = (slot // B) * stride_n + (slot % B) * stride_b + d
    is_key = kept & (head >= HEADS) & (head < HEADS + KV_HEADS)
    key = k_cache_ptr + at + (head - HEADS) * stride_h
    tl.store(key, stored(x, k_over, k_cache_ptr), mask=is_key)
    tl.store(key + D // 2, stored(y, k_over, k_cache_ptr), mask=is_key)
    is_value = kept & (head >= HEADS + KV_HEADS)
    value = v_cache_ptr + at + (head - HEADS - KV_HEADS) * stride_h
    tl.store(value, stored(x, v_over, v_cache_ptr), mask=is_value)
    tl.store(value + D // 2, stored(y, v_over, v_cache_ptr), mask=is_value)

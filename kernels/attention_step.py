"""What all forms of paged attention share: the arguments of one call, and the softmax over a tile of keys."""

# mypy: disable-error-code="no-untyped-def"
import math
from typing import NamedTuple

from torch import Tensor

from kernels.float8_kv import widened
from kernels.language import jit, tl

LOG2_E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-1.0e30)  # finite, so that a row without a key in some tile stays free of NaN
_NOTHING = tl.constexpr(-1.0e20)


class Step(NamedTuple):
    """The arguments of one call, as every launch wants them. `window` 0 and `softcap` 0: none.

    `scale` has the scale of cached keys in it; what the sums give is multiplied with `v_scale`, that of values.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    sinks: Tensor | None
    out: Tensor
    scale: float
    window: int
    softcap: float
    v_scale: float = 1.0


class Tile(NamedTuple):
    """Rows of queries and of keys in a tile, and how Triton is to run it."""

    rows: int
    keys: int
    warps: int
    stages: int


def arguments(step: Step) -> tuple[Tensor | float, ...]:
    """Return what every kernel takes first."""
    cache = step.k_cache
    unit = (step.softcap or step.scale) * math.log2(math.e)  # of a score, in powers of two
    return (
        step.q, cache, step.v_cache, step.block_tables, step.query_start, step.context_lens,
        step.sinks if step.sinks is not None else step.q, step.out,
        unit, step.scale / step.softcap if step.softcap else 0.0, step.window, step.v_scale,
        step.q.stride(0), step.q.stride(1), step.out.stride(0), cache.stride(0), cache.stride(1), cache.stride(2),
        step.block_tables.stride(0), cache.shape[2],
    )  # fmt: skip


@jit
def score(q, k, softcap, SOFTCAP: tl.constexpr):
    """Raw logits of a tile, or soft-capped ones; the caller's `unit` turns them into powers of two."""
    return capped(tl.dot(q, tl.trans(k), input_precision="ieee"), softcap, SOFTCAP)


@jit
def capped(s, softcap, SOFTCAP: tl.constexpr):
    """Logits as `score` returns them."""
    if SOFTCAP:  # `softcap` is scale / cap here
        s = 2 * tl.sigmoid(2 * softcap * s) - 1
    return s


@jit
def weighed(s, unit, top, total):
    """Weights of a tile, by how much what was summed so far shrinks, new maximum and sum; exp2 takes one FMA."""
    higher = tl.maximum(top, tl.max(s, 1))
    # A row that has seen no key yet must not subtract HIDDEN from itself: the FMA's rounding would leave 1e22.
    p = tl.exp2(s * unit - (tl.maximum(higher, _NOTHING) * unit)[:, None])
    decay = tl.exp2((top - higher) * unit)
    return p, decay, higher, total * decay + tl.sum(p, 1)


@jit
def update(s, v, unit, top, total, acc):
    """One step of the running softmax: rescale what was summed so far, add this tile."""
    p, decay, higher, total = weighed(s, unit, top, total)
    acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    return higher, total, acc


@jit
def averaged(top, total, acc, sink_ptr, live, unit, v_scale, SINKS: tl.constexpr):
    """What rows give whose keys have all been seen: a sink weighs and carries no value; no key at all gives zeros."""
    if SINKS:
        sink = tl.load(sink_ptr, mask=live, other=0.0).to(tl.float32) * LOG2_E
        top = top * unit
        higher = tl.maximum(top, sink)
        decay = tl.exp2(top - higher)
        total = total * decay + tl.exp2(sink - higher)
        acc = acc * decay[:, None]
    return acc / tl.where(total == 0.0, 1.0, total)[:, None] * v_scale


@jit
def load_kv(
    k_ptr, v_ptr, table, tile, live, d, stride_n, stride_b,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
    TO: tl.constexpr,
):  # fmt: skip
    """Fetch the keys and values of a tile through the block table; dead keys read as zero, never as what lies there.

    Codes become numbers of the type `TO`.
    """
    key = tl.arange(0, KEYS)
    if KEYS % B == 0:  # whole blocks: the place within a block is the same in every tile, so the compiler hoists it
        entry, offset = tile * (KEYS // B) + key // B, key % B
    else:
        entry, offset = (tile * KEYS + key) // B, (tile * KEYS + key) % B
    block = tl.load(table + entry, mask=live if MASKED else None)
    at = (offset * stride_b)[:, None] + d[None, :] + (block.to(tl.int64) * stride_n)[:, None]
    if MASKED:
        inside = live[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + at, mask=inside, other=0.0)
        v = tl.load(v_ptr + at, mask=inside, other=0.0)
    elif D != BLOCK_D:
        inside = (d < D)[None, :]
        k = tl.load(k_ptr + at, mask=inside, other=0.0)
        v = tl.load(v_ptr + at, mask=inside, other=0.0)
    else:
        k = tl.load(k_ptr + at)
        v = tl.load(v_ptr + at)
    return widened(k, TO), widened(v, TO)

"""The products of a decode step with few rows, fused with what stands before and after them in a layer.

With few rows a product is a stream of weights, and what costs beside it are starts: of kernels, of CTAs, of memory's
pipeline. So norms, rotation, store, gate and residual addition go into the products (5 kernels a layer, where plain ops
take 10), and with programmatic dependent launch the next kernel starts while this one runs
and fetches its first weights before it waits for this one's result. One row reads whole rows of weights
(`_row_kernel`), 2 to 64 rows use the tensor cores (`_rows_kernel`). Each sum has a fixed order, those too that several
programs share: the last to arrive adds the parts.

Long: one op, its meaning and its kernels, which share their loads, stay in one file.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels import activation, dispatch, rms_norm, rope
from kernels.language import TRITON_INSTALLED, jit, next_power_of_2, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

MAX_ROWS = 64
_AHEAD = 128  # columns of its weights that a program asks to L2 before it waits
_QKV, _ADD, _GATE, _PLAIN = (tl.constexpr(n) for n in range(4))
SILU, GELU, GELU_TANH = 0, 1, 2


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


def suits(weight: Tensor) -> bool:
    """Tell whether a weight has a shape that these ops multiply with."""
    return weight.is_contiguous() and weight.shape[0] % 16 == 0 and weight.shape[1] % 16 == 0


def fits(x: Tensor, num_rows: int) -> bool:
    """Tell whether these ops serve `num_rows` rows like `x`: bf16 on a GPU with dependent launches."""
    on_gpu = x.is_cuda and x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device)[0] >= 9
    return 0 < num_rows <= MAX_ROWS and on_gpu and dispatch.form(x) == "triton" and not dispatch.fixed()


def norm_qkv(
    x: Tensor, norm: RmsNormWeights, weight: Tensor, head_dim: int, turn: Rotation, arrived: Tensor | None = None,
    begun: HalfNormed | None = None,
) -> Tensor:  # fmt: skip
    """Return norm(x) W^T [T, (H + 2K) D] with queries and keys rotated; keys and values go to the caches as well.

    `arrived` as in `linear_add`; `begun` is what that returned when it made this x with this norm.
    """
    _check(x, weight, arrived)
    if dispatch.form(x) == "triton":
        out = x.new_empty(x.shape[0], weight.shape[0])
        _launch(x, norm, weight, out, _QKV.value, head_dim=head_dim, turn=turn, arrived=arrived, begun=begun)
        return out
    return reference_qkv(x, norm, weight, head_dim, turn)


def norm_gate(
    x: Tensor, norm: RmsNormWeights, weight: Tensor, act: int, begun: HalfNormed | None = None
) -> Tensor:  # fmt: skip
    """Return act(g) * u [T, F] for (g, u) = norm(x) W^T, `weight` [2F, E] with the gates first. `begun` as above."""
    _check(x, weight)
    if dispatch.form(x) == "triton":
        out = x.new_empty(x.shape[0], weight.shape[0] // 2)
        _launch(x, norm, weight, out, _GATE.value, act=act, begun=begun)
        return out
    return activation.reference(functional.linear(_normed(x, norm), weight), act)


def linear_add(
    x: Tensor, weight: Tensor, residual: Tensor, arrived: Tensor | None = None, then: RmsNormWeights | None = None
) -> HalfNormed | None:
    """Add x W^T to `residual` [T, F] in place; with `then`, the norm after it, begin that where it saves a kernel.

    With `arrived`, F / 16 int32 that are zero before and after, the sum over E may be split between programs; the last
    one to arrive adds the parts up, always in the same order.
    """
    _check(x, weight, arrived)
    if residual.shape != (x.shape[0], weight.shape[0]) or not residual.is_contiguous():
        raise ValueError(f"residual has shape {tuple(residual.shape)}; it must be contiguous [T, F]")
    if dispatch.form(x) == "triton":
        return _launch(x, None, weight, residual, _ADD.value, arrived=arrived, then=then)
    residual.add_(functional.linear(x, weight))
    return None


def linear_into(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write x W^T to `out` [T, F], float32 or x's dtype (the head, whose logits are not rounded)."""
    _check(x, weight)
    if dispatch.form(x) == "triton":
        _launch(x, None, weight, out, _PLAIN.value)
    else:
        out.copy_(functional.linear(x, weight))


def reference_qkv(x: Tensor, norm: RmsNormWeights, weight: Tensor, head_dim: int, turn: Rotation) -> Tensor:
    """Norm, project, rotate and store in plain torch."""
    out = functional.linear(_normed(x, norm), weight)
    heads = out.view(x.shape[0], -1, head_dim)
    K = turn.k_cache.shape[2]
    H = heads.shape[1] - 2 * K
    q, k, v = heads[:, :H], heads[:, H : H + K], heads[:, H + K :]
    rope.rope_store_kv(q, k, v, turn.cos, turn.sin, turn.positions, turn.k_cache, turn.v_cache, turn.slot_mapping)
    rope.reference(q[:, :0], k, turn.cos, turn.sin, turn.positions)
    return out


def _normed(x: Tensor, norm: RmsNormWeights) -> Tensor:
    return rms_norm.reference(x, norm.weight, norm.eps, offset=norm.offset)


def _check(x: Tensor, weight: Tensor, arrived: Tensor | None = None) -> None:
    if x.dim() != 2 or weight.dim() != 2 or weight.shape[1] != x.shape[1] or not weight.is_contiguous():
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs contiguous [F, E]")
    if not x.is_contiguous() or not 0 < x.shape[0] <= MAX_ROWS:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be contiguous with 1 to {MAX_ROWS} rows")
    if not suits(weight):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; its sizes must be multiples of 16")
    if arrived is not None and (arrived.dtype != torch.int32 or arrived.numel() < weight.shape[0] // 16):
        raise ValueError(f"arrived has {arrived.numel()} elements; it must be int32 with {weight.shape[0] // 16}")


def _launch(
    x: Tensor, norm: RmsNormWeights | None, weight: Tensor, out: Tensor, kind: int, *, head_dim: int = 2, act: int = 0,
    turn: Rotation | None = None, arrived: Tensor | None = None, begun: HalfNormed | None = None,
    then: RmsNormWeights | None = None,
) -> HalfNormed | None:  # fmt: skip
    T, E = x.shape
    F = weight.shape[0]
    pdl = {"launch_pdl": True} if x.is_cuda else {}
    if T > 1 and norm is not None and begun is None:
        normed = torch.empty_like(x)
        block = next_power_of_2(E)
        _norm_kernel[(T,)](
            x, norm.weight, normed, norm.eps, norm.offset, E=E, BLOCK=block, PDL=x.is_cuda,
            num_warps=max(1, min(16, block // 256)), **pdl,
        )  # fmt: skip
        x = normed
    rotation = (x,) * 6 if turn is None else (
        turn.cos, turn.sin, turn.positions, turn.k_cache, turn.v_cache, turn.slot_mapping
    )  # fmt: skip
    heads = turn.k_cache.shape[2] if turn is not None else 1
    strides = (0,) * 4 if turn is None else (turn.cos.stride(0), *turn.k_cache.stride()[:3])
    block_size = 1 if turn is None else turn.k_cache.shape[1]
    common = {"KIND": kind, "D": head_dim, "KV_HEADS": heads, "B": block_size, "ACT": act, "PDL": x.is_cuda} | pdl
    if T == 1:
        rows, warps, per_processor = _row_tile(F, E, kind)
        tiles = F // rows
        grid = min(tiles, per_processor * _processors(x)) if per_processor else tiles
        _row_kernel[(grid,)](
            x, norm.weight if norm is not None else x, weight, out, *rotation, *strides,
            norm.eps if norm is not None else 0.0, norm.offset if norm is not None else 0.0, tiles,
            F=F, E=E, BLOCK=next_power_of_2(E), ROWS=rows, NORM=norm is not None, num_warps=warps, **common,
        )  # fmt: skip
        return None
    rows, depth, stages, split = _rows_tile(F, E, T, arrived is not None)
    tokens = max(16, next_power_of_2(T))
    partial = x.new_empty((F // rows, split, rows, tokens), dtype=torch.float32) if split > 1 else x
    left = None
    if then is not None:
        left = HalfNormed(torch.empty_like(out), x.new_empty((F // rows, T), dtype=torch.float32))
    before = (x, 0, 0.0) if begun is None or norm is None else (begun.squares, begun.squares.shape[0], norm.eps)
    after = (x, 0.0, x, x) if left is None or then is None else (then.weight, then.offset, left.scaled, left.squares)
    _rows_kernel[(F // rows, split)](
        x if begun is None else begun.scaled, weight, out, *rotation, *strides, partial,
        x if arrived is None else arrived, *before, *after, T, F=F, E=E, ROWS=rows, TOKENS=tokens, DEPTH=depth,
        STAGES=stages, SPLIT=split, BEGUN=next_power_of_2(before[1]) if begun is not None else 0, THEN=left is not None,
        AHEAD=min(E // split, _AHEAD) if x.is_cuda else 0, num_warps=4, **common,
    )  # fmt: skip
    return left


def _processors(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 8


def _row_tile(F: int, E: int, kind: int) -> tuple[int, int, int]:
    """Rows of weights a tile, warps, CTAs a processor (0: one a tile), for one row. H100, measured per product.

    About 32 KB a tile; gates in small tiles that hardware deals out, the others in loops that fetch one tile ahead.
    """
    block = next_power_of_2(E)
    if kind == _GATE.value and block >= 4096:
        return 2, 4, 0
    if block > 8192:
        return 2, 16, 1
    rows = max(2, 16384 // block)
    while rows > 2 and (F % rows or F // rows < 128):
        rows //= 2
    return rows, max(4, min(8, rows * block // 2048)), 2


def _rows_tile(F: int, E: int, T: int, may_split: bool) -> tuple[int, int, int, int]:
    """Rows of weights, columns a stage, stages, parts of the sum; for the tensor cores. H200, best of 640 measured.

    Tiles of 64 rows, which the widest instructions want and which read x least often, and work for every processor:
    both at once by splitting the sum of short weights. One program a processor then keeps much in flight; more parts
    than that cost more to add than they gain.
    """
    few, rows, split = T <= 16, 64, 1
    while may_split and F % 64 == 0 and split < 8 and F // 64 * split < 120 and E % (256 * split) == 0:
        split *= 2
    while split == 1 and rows > 16 and (F % rows or F // rows < 128):
        rows //= 2
    if rows < 64:
        depth, stages = 512 if rows == 16 and few else 256, 3 if rows == 16 or T > 32 else 4
    elif F // 64 * split < 144:
        depth, stages = (256, 4) if few else (128, 5)
    else:
        split *= 2 if split > 1 and few else 1
        depth, stages = 128, 3 if T > 32 or split > 2 else 4
    while E % (split * depth):
        depth //= 2
    return rows, depth, stages, split


@jit
def _l2_ahead(pointer, size):
    """Ask for `size` bytes (a multiple of 16) from each address to come to L2."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;", "=r,l,r", [pointer.to(tl.int64), size],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@jit
def _weight_row(n, F: tl.constexpr, KIND: tl.constexpr, D: tl.constexpr):
    """Row n of the order in which partners (dims d, d + D/2 of a head; gate and up) are neighbours."""
    pair, second = n // 2, n % 2
    if KIND == _QKV:
        return pair // (D // 2) * D + pair % (D // 2) + second * (D // 2)
    if KIND == _GATE:
        return pair + second * (F // 2)
    return n


@jit
def _gated(gate, up, ACT: tl.constexpr):
    if ACT == 0:
        return gate / (1 + tl.exp(-gate)) * up
    if ACT == 1:
        return 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476)) * up
    return gate / (1 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))) * up


@jit
def _angles(cos_ptr, sin_ptr, table_stride, position, pair, F: tl.constexpr, D: tl.constexpr, KV_HEADS: tl.constexpr):
    """cos and sin of a pair; values are not turned."""
    turned = pair < F // 2 - KV_HEADS * (D // 2)
    at = position * table_stride + pair % (D // 2)
    return tl.load(cos_ptr + at, mask=turned, other=1.0), tl.load(sin_ptr + at, mask=turned, other=0.0)


@jit
def _store_qkv(
    a, b, pair, token, live, cos, sin, slot, out_ptr, k_cache_ptr, v_cache_ptr, stride_n, stride_b, stride_h,
    F: tl.constexpr, D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr,
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
    tl.store(key, x.to(k_cache_ptr.dtype.element_ty), mask=is_key)
    tl.store(key + D // 2, y.to(k_cache_ptr.dtype.element_ty), mask=is_key)
    is_value = kept & (head >= HEADS + KV_HEADS)
    value = v_cache_ptr + at + (head - HEADS - KV_HEADS) * stride_h
    tl.store(value, x.to(v_cache_ptr.dtype.element_ty), mask=is_value)
    tl.store(value + D // 2, y.to(v_cache_ptr.dtype.element_ty), mask=is_value)


@jit
def _row_kernel(
    x_ptr, norm_ptr, weight_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    table_stride, stride_n, stride_b, stride_h, eps, offset, tiles,
    F: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, KIND: tl.constexpr,
    D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr, ACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: x stays in registers, one tile of whole weight rows is always in flight."""
    if PDL:
        gdc_launch_dependents()
    program, programs = tl.program_id(0), tl.num_programs(0)
    n, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (column < E)[None, :]
    row = _weight_row(program * ROWS + n, F, KIND, D)
    weights = tl.load(weight_ptr + row.to(tl.int64)[:, None] * E + column[None, :], mask=inside, other=0.0)
    if NORM:
        scale = tl.load(norm_ptr + column, mask=column < E, other=0.0).to(tl.float32) + offset
    if KIND == _QKV:  # these were written before the layers began
        position, slot = tl.load(positions_ptr), tl.load(slots_ptr)
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + column, mask=column < E, other=0.0).to(tl.float32)
    rstd = 1.0
    if NORM:
        rstd = tl.rsqrt(tl.sum(x * x, 0) / E + eps)
        x = tl.where(column < E, x * scale, 0.0)
    for tile in range(program, tiles, programs):
        following = tile + programs
        row = _weight_row(following * ROWS + n, F, KIND, D)
        ahead = tl.load(
            weight_ptr + row.to(tl.int64)[:, None] * E + column[None, :], mask=inside & (following < tiles), other=0.0
        )
        y = tl.sum(weights.to(tl.float32) * x[None, :], 1) * rstd
        if KIND == _ADD:
            to = out_ptr + tile * ROWS + n
            tl.store(to, (tl.load(to).to(tl.float32) + y).to(out_ptr.dtype.element_ty))
        elif KIND == _PLAIN:
            tl.store(out_ptr + tile * ROWS + n, y.to(out_ptr.dtype.element_ty))
        else:
            pair = tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
            a, b = tl.split(tl.reshape(y, [ROWS // 2, 2]))
            if KIND == _GATE:
                tl.store(out_ptr + pair, _gated(a, b, ACT).to(out_ptr.dtype.element_ty))
            else:
                cos, sin = _angles(cos_ptr, sin_ptr, table_stride, position, pair, F, D, KV_HEADS)
                _store_qkv(
                    a, b, pair, 0, pair >= 0, cos, sin, slot, out_ptr, k_cache_ptr, v_cache_ptr, stride_n, stride_b,
                    stride_h, F, D, KV_HEADS, B,
                )  # fmt: skip
        weights = ahead


@jit
def _rows_kernel(
    x_ptr, weight_ptr, out_ptr, cos_ptr, sin_ptr, positions_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    table_stride, stride_n, stride_b, stride_h, partial_ptr, arrived_ptr,
    begun_squares_ptr, begun_tiles, eps, norm_ptr, offset, scaled_ptr, squares_ptr, T,
    F: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, BEGUN: tl.constexpr, THEN: tl.constexpr, AHEAD: tl.constexpr,
    KIND: tl.constexpr, D: tl.constexpr, KV_HEADS: tl.constexpr, B: tl.constexpr, ACT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Up to 64 rows: acc [ROWS, TOKENS] = W x^T, the weights being the tall side that the tensor cores want."""
    if PDL:
        gdc_launch_dependents()
    n, token, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, TOKENS)[None, :], tl.arange(0, DEPTH)
    first = tl.program_id(1) * (E // SPLIT)
    row = weight_ptr + _weight_row(n, F, KIND, D).to(tl.int64) * E + first
    if AHEAD > 0:
        _l2_ahead(row, AHEAD * 2)
    live = token < T
    pair = (tl.program_id(0) * (ROWS // 2) + tl.arange(0, ROWS // 2))[:, None]
    if KIND == _QKV:
        position = tl.load(positions_ptr + token, mask=live, other=0)
        slot = tl.load(slots_ptr + token, mask=live, other=-1)
        cos, sin = _angles(cos_ptr, sin_ptr, table_stride, position, pair + token * 0, F, D, KV_HEADS)
    if PDL:
        gdc_wait()
    acc = tl.zeros([ROWS, TOKENS], tl.float32)
    weights, inputs = row[:, None] + k[None, :], x_ptr + first + token * E + k[:, None]
    for at in tl.range(0, E // SPLIT, DEPTH, num_stages=STAGES):
        w = tl.load(weights + at)
        x = tl.load(inputs + at, mask=live, other=0.0)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    last = True
    if SPLIT > 1:  # the last program to arrive has the sum; it adds the parts in their order
        tile = tl.program_id(0) * SPLIT
        at = tl.arange(0, ROWS)[:, None] * TOKENS + token
        tl.store(partial_ptr + (tile + tl.program_id(1)) * (ROWS * TOKENS) + at, acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived_ptr + tl.program_id(0), 1, sem="acq_rel") == SPLIT - 1
    if last:
        if SPLIT > 1:
            tl.store(arrived_ptr + tl.program_id(0), 0)
            acc = _sum_parts(partial_ptr + tile * (ROWS * TOKENS) + at, ROWS * TOKENS, SPLIT)
        acc = _times_inverse_rms(acc, begun_squares_ptr, begun_tiles, T, token, eps, E, BEGUN)
        if KIND == _ADD:
            _store_sum(acc, token, n, live, out_ptr, norm_ptr, offset, scaled_ptr, squares_ptr, T, F, THEN)
        elif KIND == _PLAIN:
            tl.store(out_ptr + token * F + n[:, None], acc.to(out_ptr.dtype.element_ty), mask=live)
        else:
            a, b = tl.split(tl.permute(tl.reshape(acc, [ROWS // 2, 2, TOKENS]), (0, 2, 1)))
            if KIND == _GATE:
                tl.store(out_ptr + token * (F // 2) + pair, _gated(a, b, ACT).to(out_ptr.dtype.element_ty), mask=live)
            else:
                _store_qkv(
                    a, b, pair, token, live & (pair >= 0), cos, sin, slot, out_ptr, k_cache_ptr, v_cache_ptr, stride_n,
                    stride_b, stride_h, F, D, KV_HEADS, B,
                )  # fmt: skip


@jit
def _times_inverse_rms(acc, squares_ptr, tiles, T, token, eps, E: tl.constexpr, BEGUN: tl.constexpr):
    """The half of a norm that was left to the product after it, if it was."""
    if BEGUN > 0:
        part = tl.arange(0, BEGUN)[:, None]
        squares = tl.load(squares_ptr + part * T + token, mask=(token < T) & (part < tiles), other=0.0)
        return acc * tl.rsqrt(tl.sum(squares, 0) / E + eps)[None, :]
    return acc


@jit
def _store_sum(
    acc, token, n, live, out_ptr, norm_ptr, offset, scaled_ptr, squares_ptr, T, F: tl.constexpr, THEN: tl.constexpr
):  # fmt: skip
    """Add a tile to what `out` holds, and leave half of the norm after it."""
    to = token * F + n[:, None]
    total = (acc + tl.load(out_ptr + to, mask=live, other=0.0).to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + to, total, mask=live)
    if THEN:
        total = total.to(tl.float32)
        scale = tl.load(norm_ptr + n).to(tl.float32)[:, None] + offset
        tl.store(scaled_ptr + to, (total * scale).to(scaled_ptr.dtype.element_ty), mask=live)
        squares = tl.sum(total * total, 0)[None, :]
        tl.store(squares_ptr + tl.program_id(0) * T + token, squares, mask=live)


@jit
def _sum_parts(pointer, stride: tl.constexpr, SPLIT: tl.constexpr):
    """Add what SPLIT programs wrote, in their order; it is read past the L1 cache."""
    total = tl.load(pointer, cache_modifier=".cg")
    for part in tl.static_range(1, SPLIT):
        total += tl.load(pointer + part * stride, cache_modifier=".cg")
    return total


@jit
def _norm_kernel(x_ptr, weight_ptr, out_ptr, eps, offset, E: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
    column = tl.arange(0, BLOCK)
    scale = tl.load(weight_ptr + column, mask=column < E, other=0.0).to(tl.float32) + offset
    if PDL:
        gdc_wait()
    at = tl.program_id(0) * E + column
    x = tl.load(x_ptr + at, mask=column < E, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / E + eps) * scale
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=column < E)

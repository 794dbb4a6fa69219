"""Attention of a mixed batch over the paged KV cache: prefill over a cached prefix, decodes and drafts in one call.

Query i of a sequence with n queries and context c (new tokens included) stands at position c - n + i and sees the keys
at or before it. A short query block takes `_decode_kernel`: its queries and the heads that share a KV head form one
tile, the context is cut into splits, and `_merge_kernel` adds the splits in their order (no atomics: the same input
gives the same bits). A long one takes `_prefill_kernel`. No dense copy of the cache, and no wait for the device.

Long: the public function, its meaning, the launches and all kernels of one op stay in one file.
"""

# mypy: disable-error-code="no-untyped-def"
import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit, next_power_of_2, tl
from kernels.native import record
from kernels.native.library import threads

_LOG2_E = tl.constexpr(1.4426950408889634)
_MASKED = tl.constexpr(-1.0e30)  # finite, so that a row without a key in some tile stays free of NaN
_NOTHING = tl.constexpr(-1.0e20)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    max_query_len: int | None = None,
    max_context_len: int | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return attention [T, H, D] of `q` [T, H, D] over `k_cache` and `v_cache` [N, B, K, D].

    `block_tables` [S, M], `query_start` [S + 1] and `context_lens` [S] are int32. A query sees the last `window` keys,
    its own included; `softcap` c turns a logit x into c * tanh(x / c); `sinks` [H] are logits that take part in the
    softmax and carry no value. `max_query_len` and `max_context_len` bound the step (defaults: T and M * B).
    `num_splits` fixes how a decode's context is cut, so that a row's bits do not depend on the batch. Rows behind
    query_start[S] are not written; a sequence with context 0 gives zeros.
    """
    _check(q, k_cache, v_cache, block_tables, query_start, context_lens, sinks)
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it must be at least 1, or None")
    if out is None:
        native = q.dtype == torch.float32 and q.device.type == "cpu"
        out = record.empty(tuple(q.shape)) if native else torch.empty(q.shape, dtype=q.dtype, device=q.device)
    elif out.shape != q.shape or not out.is_contiguous():
        raise ValueError(f"out has shape {tuple(out.shape)}; it must be contiguous {tuple(q.shape)}")
    T, S = q.shape[0], context_lens.shape[0]
    if T == 0 or S == 0:
        return out
    if dispatch.form(q) == "native" and _native_fits(q, k_cache, out, sinks):
        deepest = min(block_tables.shape[1] * k_cache.shape[1], max_context_len or 1 << 62)
        _native(
            _Step(
                q, k_cache, v_cache, block_tables, query_start, context_lens, sinks, out,
                scale, window or 0, softcap or 0.0,
            ),
            deepest, max_query_len == 1,
        )  # fmt: skip
        return out
    if dispatch.form(q) != "triton":
        record.refuse("attention by torch looks at the lengths on the host")
        _reference_into(
            out, q, k_cache, v_cache, block_tables, query_start, context_lens, scale, window, softcap, sinks
        )  # fmt: skip
        return out
    longest = min(T, max_query_len or T)
    deepest = min(block_tables.shape[1] * k_cache.shape[1], max_context_len or 1 << 62)
    _launch(
        _Step(
            q, k_cache, v_cache, block_tables, query_start, context_lens, sinks, out, scale, window or 0, softcap or 0.0
        ),
        longest, deepest, num_splits,
    )  # fmt: skip
    return out


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend in plain torch, float32 inside: a running softmax over chunks of blocks."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    _reference_into(out, q, k_cache, v_cache, block_tables, query_start, context_lens, scale, window, softcap, sinks)
    return out


def _reference_into(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    """Sequences with equally many queries (all decodes, above all) are one group and run as one batch."""
    starts = query_start.tolist()
    groups: dict[int, list[int]] = {}
    for s in range(context_lens.shape[0]):
        if starts[s + 1] > starts[s]:
            groups.setdefault(starts[s + 1] - starts[s], []).append(s)
    for n, members in groups.items():
        index = torch.tensor(members, device=q.device)
        rows = query_start[index].long()[:, None] + torch.arange(n, device=q.device)
        result = _attend(
            q[rows], k_cache, v_cache, block_tables[index].long(), context_lens[index].long(),
            scale, window, softcap, sinks,
        )  # fmt: skip
        out[rows] = result.to(out.dtype)


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    context: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attend for a group of S sequences with n queries each: `q` [S, n, H, D] -> [S, n, H, D] float32."""
    S, n, H, D = q.shape
    B, K = k_cache.shape[1:3]
    G = H // K
    q = (q.float() * scale).view(S, n, K, G, D).permute(0, 2, 3, 1, 4)  # [S, K, G, n, D]
    position = (context - n)[:, None] + torch.arange(n, device=q.device)  # [S, n]
    if sinks is None:
        top = q.new_full((S, K, G, n), float("-inf"))
        total = q.new_zeros(S, K, G, n)
    else:
        top = sinks.float().view(K, G, 1).expand(S, K, G, n).clone()
        total = torch.ones_like(top)
    acc = q.new_zeros(S, K, G, n, D)
    shallowest, deepest = int(context.min()), int(context.max())
    first = max(0, shallowest - n - window + 1) // B if window else 0
    # About 4 MB of keys or of scores at a time: both stay in the CPU's cache, and no long context is ever dense.
    per_chunk = max(1, (1 << 20) // (S * max(K * D, H * n)) // B)
    for begin in range(first, cdiv(deepest, B), per_chunk):
        blocks = tables[:, begin : begin + per_chunk]
        key = begin * B + torch.arange(blocks.shape[1] * B, device=q.device)
        dead = key >= context[:, None]
        if window:
            dead |= key <= (context - n - window)[:, None]
        some_dead = bool(dead.any())
        if some_dead:  # ids of blocks that nobody holds may be anything
            blocks = blocks.masked_fill(dead.view(S, -1, B).all(-1), 0)
        keys = k_cache[blocks].reshape(S, -1, K, D).permute(0, 2, 3, 1).float()  # [S, K, D, c]
        values = v_cache[blocks].reshape(S, -1, K, D).permute(0, 2, 1, 3).float()  # [S, K, c, D]
        if some_dead:  # stale or never written: NaN there must not reach the sum
            values = values.masked_fill(dead[:, None, :, None], 0.0)
        i = max(0, begin * B - deepest + n)  # queries before this chunk see none of it
        c = key.shape[0]
        scores = (q[..., i:, :].reshape(S, K, G * (n - i), D) @ keys).view(S, K, G, n - i, c)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = key > position[:, i:, None]
        if window:
            hidden |= key <= position[:, i:, None] - window
        scores.masked_fill_(hidden[:, None, None], float("-inf"))
        higher = torch.maximum(top[..., i:], scores.amax(-1))
        pivot = higher.masked_fill(higher == float("-inf"), 0.0)
        weights = torch.exp(scores.sub_(pivot[..., None]))
        decay = torch.exp(top[..., i:] - pivot)
        top[..., i:] = higher
        total[..., i:] = total[..., i:] * decay + weights.sum(-1)
        acc[..., i:, :].mul_(decay[..., None]).add_((weights.view(S, K, -1, c) @ values).view(S, K, G, n - i, D))
    acc /= total.masked_fill(total == 0, 1.0)[..., None]
    return acc.permute(0, 3, 1, 2, 4).reshape(S, n, H, D)


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    sinks: Tensor | None,
) -> None:
    if q.dim() != 3 or q.stride(-1) != 1:
        raise ValueError(f"q has shape {tuple(q.shape)}; it must be [T, H, D], contiguous in its last dimension")
    if k_cache.dim() != 4 or k_cache.shape[3] != q.shape[2] or k_cache.stride(-1) != 1:
        raise ValueError(f"k_cache has shape {tuple(k_cache.shape)}; it must be [N, B, K, {q.shape[2]}]")
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError("v_cache must have the shape and strides of k_cache")
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(f"q has {q.shape[1]} heads, not a multiple of the cache's {k_cache.shape[2]}")
    S = context_lens.shape[0]
    for name, tensor, shape in (
        ("block_tables", block_tables, (S, block_tables.shape[-1])),
        ("query_start", query_start, (S + 1,)),
        ("context_lens", context_lens, (S,)),
    ):
        if tensor.shape != shape or tensor.dtype != torch.int32:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be int32 {shape}")
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}; it must be ({q.shape[1]},)")


class _Step(NamedTuple):
    """The arguments of one call, as every launch wants them."""

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


_NATIVE_SPLIT = 512  # keys; SPLIT in attention.c
_NATIVE_FLOATS, _NATIVE_ROWS, _NATIVE_D = 8192, 64, 512  # the C form's accumulators


def _native_fits(q: Tensor, k_cache: Tensor, out: Tensor, sinks: Tensor | None) -> bool:
    H, D = q.shape[1:]
    group = H // k_cache.shape[2]
    floats = all(tensor.dtype == torch.float32 for tensor in (q, out)) and not (
        sinks is not None and sinks.dtype != torch.float32
    )
    floats = floats and k_cache.dtype in (torch.float32, torch.float16)
    return floats and D <= _NATIVE_D and group <= _NATIVE_ROWS and group * cdiv(D, 16) * 16 <= _NATIVE_FLOATS


def _native(step: _Step, max_context_len: int, decodes: bool) -> None:
    """Run the C form. A few decodes of long contexts have too few heads to share among threads: splits are shared."""
    T, H, D = step.q.shape
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    splits = cdiv(max_context_len, _NATIVE_SPLIT) + (step.window > 0)  # a window may begin within a split
    # Tapes are made for any length, so the record may not depend on this step's.
    if not decodes or 4 * threads() <= S * K or splits == 1 or record.recorder is not None:
        splits = 0
    partial = record.empty((S, splits, H, cdiv(D, 16) * 16 + 2)) if splits else None
    tables = step.block_tables if step.block_tables.stride(1) == 1 else step.block_tables.contiguous()
    numbers = (
        T, S, H, K, D, step.k_cache.shape[1], tables.stride(0), *step.q.stride()[:2], *step.k_cache.stride()[:3],
        step.window, splits, step.k_cache.shape[0], int(step.k_cache.dtype == torch.float16),
    )  # fmt: skip
    tensors = (
        step.q, step.k_cache, step.v_cache, tables, step.query_start, step.context_lens, step.sinks, step.out, partial
    )  # fmt: skip
    pointers, floats = tuple(map(record.pointer, tensors)), (step.scale, step.softcap)
    kinds = (record.ATTENTION, record.MERGE) if splits else (record.ATTENTION,)
    record.call([record.Record(kind, numbers, pointers, floats) for kind in kinds], tensors)


class _Tile(NamedTuple):
    """Rows of queries and of keys in a tile, and how Triton is to run it."""

    rows: int
    keys: int
    warps: int
    stages: int


_DECODE_ROWS = 32  # queries x heads per KV head up to which a sequence counts as a decode: one tile of tensor-core rows
_MIN_SPLIT_KEYS = 64


def _launch(step: _Step, max_query_len: int, max_context_len: int, num_splits: int | None) -> None:
    if step.q.dtype == torch.bfloat16 and not step.q.is_cuda:
        raise ValueError("q is bfloat16: Triton's interpreter cannot multiply that; use float32 or float16")
    H, K = step.q.shape[1], step.k_cache.shape[2]
    if dispatch.fixed():  # one kernel for all, which walks the keys from the first on: a row's bits are its own
        _launch_prefill(step, 0, max_context_len)
        return
    decode_limit = max(1, _DECODE_ROWS // (H // K))
    _launch_decode(step, min(decode_limit, max_query_len), max_context_len, num_splits)
    if max_query_len > decode_limit:
        _launch_prefill(step, decode_limit, max_context_len)


def _decode_tile(rows: int, D: int, itemsize: int) -> _Tile:
    """Keys per tile: 32 KB of keys and values in flight per stage cover the memory's latency."""
    keys = max(16, min(64, 16384 // (next_power_of_2(D) * itemsize)))
    return _Tile(max(16, next_power_of_2(rows)), keys, warps=4, stages=3)


def _prefill_tile(D: int, itemsize: int) -> _Tile:
    """128 rows feed two warpgroups; keys halve as heads widen, so that three stages fit the shared memory of an SM."""
    if itemsize > 2:
        return _Tile(64, 32, warps=4, stages=1)
    if D > 128:
        return _Tile(128, 32, warps=8, stages=2)
    return _Tile(128, 64, warps=8, stages=3)


def _splits(step: _Step, max_context_len: int) -> int:
    """Into how many parts to cut each context, so that the programs fill the card in whole waves.

    H100, three programs an SM (us): one sequence of 512 takes 12.2 whole and 5.8 in 8 parts; 8 of 4,096 take 53 in 6
    parts (one wave), 59 in 8; 32 of 2,048 take 96 whole, 99 in 3; 64 of 4,096 take 408 whole (1.3 waves), 366 in 2.
    """
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    processors = torch.cuda.get_device_properties(step.q.device).multi_processor_count if step.q.is_cuda else 8
    wave = 3 * processors
    programs = S * K
    if programs >= 2 * wave:
        return 1  # many waves even out
    if programs > wave:
        wanted = min(range(1, 5), key=lambda n: cdiv(n * programs, wave) * wave / (n * programs) + 0.03 * n)
    else:
        wanted = 1 if 2 * programs > wave else wave // programs
    return max(1, min(wanted, cdiv(max_context_len, _MIN_SPLIT_KEYS), 64))


def _launch_decode(step: _Step, query_limit: int, max_context_len: int, num_splits: int | None) -> None:
    H, D = step.q.shape[1:]
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    tile = _decode_tile(query_limit * (H // K), D, step.q.element_size())
    splits = num_splits or _splits(step, max_context_len)
    block_d = next_power_of_2(D)
    if splits > 1:
        partial = step.q.new_empty((S, K, splits, tile.rows, block_d), dtype=torch.float32)
        state = step.q.new_empty((S, K, splits, 2, tile.rows), dtype=torch.float32)
    else:
        partial = state = step.out
    # KV heads run fastest: neighbours read the same blocks at the same time.
    _decode_kernel[(S * K, splits)](
        *_arguments(step), partial, state,
        D=D, BLOCK_D=block_d, B=step.k_cache.shape[1], G=H // K, ROWS=tile.rows, KEYS=tile.keys, SPLITS=splits,
        MIN_TILES=cdiv(_MIN_SPLIT_KEYS, tile.keys), QUERY_LIMIT=query_limit, STAGES=tile.stages,
        WINDOW=step.window > 0, SOFTCAP=step.softcap > 0, SINKS=step.sinks is not None, num_warps=tile.warps,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(S, query_limit * H)](
            partial, state, step.sinks if step.sinks is not None else state, step.query_start, step.context_lens,
            step.out, H, step.window,
            D=D, BLOCK_D=block_d, G=H // K, ROWS=tile.rows, KEYS=tile.keys, SPLITS=splits,
            MIN_TILES=cdiv(_MIN_SPLIT_KEYS, tile.keys), BLOCK_SPLITS=next_power_of_2(splits), QUERY_LIMIT=query_limit,
            WINDOW=step.window > 0, SINKS=step.sinks is not None, num_warps=2,
        )  # fmt: skip


def _launch_prefill(step: _Step, decode_limit: int, max_context_len: int) -> None:
    T, H, D = step.q.shape
    S, K = step.context_lens.shape[0], step.k_cache.shape[2]
    if _hopper_fits(step):
        from kernels import hopper_prefill  # Gluon, which neither the interpreter nor an older card needs to load

        tiles = T // (hopper_prefill.ROWS // (H // K)) + S
        hopper_prefill.launch(
            (tiles, K), (*_arguments(step), S, tiles), max_context_len,
            D=D, B=step.k_cache.shape[1], G=H // K, DECODE_LIMIT=decode_limit,
            WINDOW=step.window > 0, SOFTCAP=step.softcap > 0, SINKS=step.sinks is not None,
        )  # fmt: skip
        return
    tile = _prefill_tile(D, step.q.element_size())
    # A sequence has at most n // queries + 1 tiles, so this many programs suffice whatever the lengths: no sync.
    tiles = T // (tile.rows // (H // K)) + S
    _prefill_kernel[(tiles, K)](
        *_arguments(step), S, tiles,
        D=D, BLOCK_D=next_power_of_2(D), B=step.k_cache.shape[1], G=H // K, ROWS=tile.rows, KEYS=tile.keys,
        DECODE_LIMIT=decode_limit, STAGES=tile.stages, WINDOW=step.window > 0, SOFTCAP=step.softcap > 0,
        SINKS=step.sinks is not None, num_warps=tile.warps,
    )  # fmt: skip


def _hopper_fits(step: _Step) -> bool:
    """Say whether the Hopper form of the prefill can serve the step."""
    q, B = step.q, step.k_cache.shape[1]
    on_hopper = q.is_cuda and torch.cuda.get_device_capability(q.device) == (9, 0)
    suits = q.element_size() == 2 and q.shape[2] in (64, 128) and 64 % B == 0
    return on_hopper and suits and not dispatch.fixed()  # its tiles of keys depend on the longest context


def _arguments(step: _Step) -> tuple[Tensor | float, ...]:
    cache = step.k_cache
    unit = (step.softcap or step.scale) * math.log2(math.e)  # of a score, in powers of two
    return (
        step.q, cache, step.v_cache, step.block_tables, step.query_start, step.context_lens,
        step.sinks if step.sinks is not None else step.q, step.out,
        unit, step.scale / step.softcap if step.softcap else 0.0, step.window,
        step.q.stride(0), step.q.stride(1), step.out.stride(0), cache.stride(0), cache.stride(1), cache.stride(2),
        step.block_tables.stride(0), cache.shape[2],
    )  # fmt: skip


@jit
def _score(q, k, softcap, SOFTCAP: tl.constexpr):
    """Raw logits of a tile, or soft-capped ones; the caller's `unit` turns them into powers of two."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SOFTCAP:  # `softcap` is scale / cap here
        return 2 * tl.sigmoid(2 * softcap * s) - 1
    return s


@jit
def _update(s, v, unit, top, total, acc):
    """One step of the running softmax: rescale what was summed so far, add this tile; exp2 takes one FMA."""
    higher = tl.maximum(top, tl.max(s, 1))
    # A row that has seen no key yet must not subtract _MASKED from itself: the FMA's rounding would leave 1e22.
    p = tl.exp2(s * unit - (tl.maximum(higher, _NOTHING) * unit)[:, None])
    decay = tl.exp2((top - higher) * unit)
    total = total * decay + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    return higher, total, acc


@jit
def _load_kv(
    k_ptr, v_ptr, table, tile, live, d, stride_n, stride_b,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fetch the keys and values of a tile through the block table; dead keys read as zero, never as what lies there."""
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
    return k, v


@jit
def _split_range(
    context, n, window, split, KEYS: tl.constexpr, SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """First key that anybody sees, and the tiles [begin, end) of a split; only the sequence's own lengths decide."""
    first = context * 0
    if WINDOW:
        first = tl.maximum(context - n - window + 1, 0)
    start = first // KEYS
    stop = tl.cdiv(context, KEYS)
    per_split = tl.maximum(tl.cdiv(stop - start, SPLITS), MIN_TILES)
    begin = start + split * per_split
    return first, begin, tl.minimum(begin + per_split, stop), tl.cdiv(stop - start, per_split)


@jit
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, K,
    partial_ptr, state_ptr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, QUERY_LIMIT: tl.constexpr, STAGES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    sequence, kv_head = (tl.program_id(0) // K).to(tl.int64), tl.program_id(0) % K
    query_start = tl.load(query_start_ptr + sequence).to(tl.int64)
    n = (tl.load(query_start_ptr + sequence + 1) - query_start).to(tl.int32)
    context = tl.load(context_ptr + sequence)
    first, begin, end, parts = _split_range(context, n, window, tl.program_id(1), KEYS, SPLITS, MIN_TILES, WINDOW)
    # The first split also writes the zeros of an empty context.
    if (n > 0) & (n <= QUERY_LIMIT) & ((begin < end) | (tl.program_id(1) == 0)):
        row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        head = kv_head * G + row % G
        live_row = row < n * G
        inside = live_row[:, None] & (d < D)[None, :]
        token = query_start + row // G
        q = tl.load(q_ptr + (token * q_stride_t + head * q_stride_h)[:, None] + d[None, :], mask=inside, other=0.0)
        position = context - n + row // G
        top = tl.full([ROWS], _MASKED, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        k_base, v_base = k_cache_ptr + kv_head.to(tl.int64) * stride_h, v_cache_ptr + kv_head.to(tl.int64) * stride_h
        table = tables_ptr + sequence * table_stride
        for tile in tl.range(begin, end, num_stages=STAGES):
            key = tile * KEYS + tl.arange(0, KEYS)
            live = (key >= first) & (key < context)
            k, v = _load_kv(k_base, v_base, table, tile, live, d, stride_n, stride_b, D, BLOCK_D, B, KEYS, True)
            s = _score(q, k, softcap, SOFTCAP)
            seen = live[None, :] & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            top, total, acc = _update(tl.where(seen, s, _MASKED), v, unit, top, total, acc)
        if parts <= 1:
            if SINKS:
                sink = tl.load(sinks_ptr + head, mask=live_row, other=0.0).to(tl.float32) * _LOG2_E
                top = top * unit
                higher = tl.maximum(top, sink)
                decay = tl.exp2(top - higher)
                total = total * decay + tl.exp2(sink - higher)
                acc = acc * decay[:, None]
            acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            to = (token * out_stride + head * D)[:, None] + d[None, :]
            tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            part = (sequence * K + kv_head) * SPLITS + tl.program_id(1)
            tl.store(partial_ptr + part * (ROWS * BLOCK_D) + row[:, None] * BLOCK_D + d[None, :], acc, mask=inside)
            tl.store(state_ptr + part * (2 * ROWS) + row, top * unit, mask=live_row)
            tl.store(state_ptr + part * (2 * ROWS) + ROWS + row, total, mask=live_row)


@jit
def _merge_kernel(
    partial_ptr, state_ptr, sinks_ptr, query_start_ptr, context_ptr, out_ptr, H, window,
    D: tl.constexpr, BLOCK_D: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, MIN_TILES: tl.constexpr, BLOCK_SPLITS: tl.constexpr, QUERY_LIMIT: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    i, head = tl.program_id(1) // H, tl.program_id(1) % H
    query_start = tl.load(query_start_ptr + sequence).to(tl.int64)
    n = (tl.load(query_start_ptr + sequence + 1) - query_start).to(tl.int32)
    context = tl.load(context_ptr + sequence)
    _first, _begin, _end, parts = _split_range(context, n, window, 0, KEYS, SPLITS, MIN_TILES, WINDOW)
    if (i < n) & (n <= QUERY_LIMIT) & (parts > 1):
        split, d = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
        row = i * G + head % G
        part = (sequence * (H // G) + head // G) * SPLITS + split
        live = split < parts
        top = tl.load(state_ptr + part * (2 * ROWS) + row, mask=live, other=_MASKED)
        total = tl.load(state_ptr + part * (2 * ROWS) + ROWS + row, mask=live, other=0.0)
        higher = tl.max(top, 0)
        if SINKS:
            sink = tl.load(sinks_ptr + head).to(tl.float32) * _LOG2_E
            higher = tl.maximum(higher, sink)
        share = tl.where(live, tl.exp2(top - higher), 0.0)
        sum_all = tl.sum(share * total, 0)
        if SINKS:
            sum_all += tl.exp2(sink - higher)
        at = (part * (ROWS * BLOCK_D) + row * BLOCK_D)[:, None] + d[None, :]
        acc = tl.load(partial_ptr + at, mask=live[:, None] & (d < D)[None, :], other=0.0)
        result = tl.sum(acc * share[:, None], 0) / sum_all
        to = (query_start + i) * (H * D) + head * D + d
        tl.store(out_ptr + to, result.to(out_ptr.dtype.element_ty), mask=d < D)


@jit
def _find_sequence(query_start_ptr, S, tile, QUERIES: tl.constexpr):
    """Sequence of a query tile: how many begin at or before it; s begins at tile query_start[s] // QUERIES + s."""
    found = tile * 0
    for base in range(0, S, 256):
        s = base + tl.arange(0, 256)
        start = tl.load(query_start_ptr + s, mask=s < S, other=0) // QUERIES + s
        found += tl.sum(((s < S) & (start <= tile)).to(tl.int32), 0)
    return found - 1


@jit
def _prefill_tiles(
    begin, end, q, top, total, acc, k_base, v_base, table, position, first, context, d, unit, softcap, window,
    stride_n, stride_b,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Run the softmax over key tiles [begin, end); MASKED where it crosses the diagonal or a window's edge."""
    for tile in tl.range(begin, end, num_stages=STAGES):
        key = tile * KEYS + tl.arange(0, KEYS)
        live = (key >= first) & (key < context)
        k, v = _load_kv(k_base, v_base, table, tile, live, d, stride_n, stride_b, D, BLOCK_D, B, KEYS, MASKED)
        s = _score(q, k, softcap, SOFTCAP)
        if MASKED:
            seen = live[None, :] & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            s = tl.where(seen, s, _MASKED)
        top, total, acc = _update(s, v, unit, top, total, acc)
    return top, total, acc


@jit
def _prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, tables_ptr, query_start_ptr, context_ptr, sinks_ptr, out_ptr,
    unit, softcap, window, q_stride_t, q_stride_h, out_stride, stride_n, stride_b, stride_h, table_stride, _K,
    S, tiles,
    D: tl.constexpr, BLOCK_D: tl.constexpr, B: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    DECODE_LIMIT: tl.constexpr, STAGES: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = ROWS // G
    # Later queries see more keys: they start first, so that the last programs to run are the short ones.
    tile = tiles - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start_ptr, S, tile, QUERIES)
    query_start = tl.load(query_start_ptr + sequence)
    n = tl.load(query_start_ptr + sequence + 1) - query_start
    context = tl.load(context_ptr + sequence)
    i0 = (tile - (query_start // QUERIES + sequence)) * QUERIES
    if (n > DECODE_LIMIT) & (i0 < n):
        row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        i = i0 + row // G
        head = kv_head * G + row % G
        live_row = (row < QUERIES * G) & (i < n)
        inside = live_row[:, None] & (d < D)[None, :]
        token = (query_start + i).to(tl.int64)
        q = tl.load(q_ptr + (token * q_stride_t + head * q_stride_h)[:, None] + d[None, :], mask=inside, other=0.0)
        position = context - n + i
        last = context - n + tl.minimum(i0 + QUERIES, n) - 1  # position of the tile's last query
        earliest = context - n + i0
        first = context * 0
        full_from = 0
        if WINDOW:
            first = tl.maximum(earliest - window + 1, 0)
            full_from = tl.cdiv(tl.maximum(last - window + 1, 0), KEYS)
        begin, end = first // KEYS, tl.cdiv(last + 1, KEYS)
        full_to = tl.maximum((earliest + 1) // KEYS, begin)
        full_from = tl.minimum(tl.maximum(full_from, begin), full_to)
        top = tl.full([ROWS], _MASKED, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        k_base, v_base = k_cache_ptr + kv_head.to(tl.int64) * stride_h, v_cache_ptr + kv_head.to(tl.int64) * stride_h
        table = tables_ptr + sequence.to(tl.int64) * table_stride
        if WINDOW:
            top, total, acc = _prefill_tiles(
                begin, full_from, q, top, total, acc, k_base, v_base, table, position, first, context, d,
                unit, softcap, window, stride_n, stride_b, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP, True,
            )  # fmt: skip
        top, total, acc = _prefill_tiles(
            full_from, full_to, q, top, total, acc, k_base, v_base, table, position, first, context, d,
            unit, softcap, window, stride_n, stride_b, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP, False,
        )  # fmt: skip
        top, total, acc = _prefill_tiles(
            full_to, end, q, top, total, acc, k_base, v_base, table, position, first, context, d,
            unit, softcap, window, stride_n, stride_b, D, BLOCK_D, B, KEYS, STAGES, WINDOW, SOFTCAP, True,
        )  # fmt: skip
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=live_row, other=0.0).to(tl.float32) * _LOG2_E
            top = top * unit
            higher = tl.maximum(top, sink)
            decay = tl.exp2(top - higher)
            total = total * decay + tl.exp2(sink - higher)
            acc = acc * decay[:, None]
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        to = (token * out_stride + head * D)[:, None] + d[None, :]
        tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)

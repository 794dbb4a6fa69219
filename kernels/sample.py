"""Draws one token per row: temperature, then top-k, top-p, min-p, then argmax of logit + Gumbel noise. No sort.

All three filters are thresholds on the logit, ties kept: top-k keeps x >= the k-th largest, top-p keeps x while the
probability strictly above x (among what top-k kept) is below p, min-p keeps what has at least min_p of the best one's.
So the draw is the noisiest token above one threshold, and the threshold need not be known: the noisiest token of a
superset is either allowed, or everything at or below it is out. One pass over the logits finds the maxima of groups
of 128 tokens; the k-th largest of *them* (or enough of them to weigh p) bounds the threshold from below, so that all
further passes read a few groups only.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch, noise
from kernels.language import cdiv, jit, next_power_of_2, tl
from kernels.noise import gumbel, noise_key


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Return a token id per row, int64 [S], drawn from `logits` [S, V].

    `temperature`, `top_p`, `min_p` are float32 [S], `top_k` int32 [S], `seeds` and `positions` int64 [S]. Temperature 0
    takes the best token, the lowest id among equals; top_k 0, top_p 1 and min_p 0 are off. The noise depends on
    (seed, position, id) only. NaN counts as -inf; a row without any finite logit gives 0.
    """
    _check(logits, temperature, top_k, top_p, min_p, seeds, positions)
    if dispatch.form(logits) == "triton":
        out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        _launch(logits, temperature, top_k, top_p, min_p, seeds, positions, out)
        return out
    return reference(logits, temperature, top_k, top_p, min_p, seeds, positions)


def reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw in plain torch; filtered rows look at their best few hundred tokens, at more only where these do not do."""
    V = logits.shape[1]
    clean = logits.float()
    best = clean.amax(-1)
    if bool(best.isnan().any()):
        clean = clean.masked_fill(clean.isnan(), float("-inf"))
        best = clean.amax(-1)
    out = clean.argmax(-1)
    k = torch.where((top_k <= 0) | (top_k > V), V, top_k.long())
    drawn = (temperature > 0) & torch.isfinite(best)
    filtered = drawn & ((k < V) | (top_p < 1) | (min_p > 0))
    ids = torch.arange(V, dtype=torch.int32, device=logits.device)
    for row in (drawn & ~filtered).nonzero():  # one at a time: the temporaries of a row stay in the CPU's cache
        noisy = noise.reference(seeds[row], positions[row], ids).add_(clean[row] / temperature[row, None])
        out[row] = noisy.argmax(-1)
    rows = filtered.nonzero()[:, 0]
    few = min(V, 512)
    while rows.numel():
        picked, covered = _draw_filtered(
            clean[rows], temperature[rows], k[rows], top_p[rows], min_p[rows], seeds[rows], positions[rows], few
        )
        out[rows[covered]] = picked[covered]
        rows, few = rows[~covered], min(V, 16 * few)
    return out


def _draw_filtered(
    logits: Tensor,
    temperature: Tensor,
    k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    few: int,
) -> tuple[Tensor, Tensor]:
    """Draw from the `few` best tokens of each row; and say where these certainly hold all that the filters keep."""
    V = logits.shape[1]
    x, ids = logits.topk(few, dim=-1)  # descending
    scaled = (x - x[:, :1]) / temperature[:, None]
    weight = scaled.exp()
    kept = x >= x.gather(1, (k.clamp(max=few) - 1)[:, None])
    total = torch.where(
        k < V, (weight * kept).sum(-1), ((logits - x[:, :1]) / temperature[:, None]).exp_().sum(-1)
    )  # fmt: skip
    before = weight.cumsum(-1) - weight
    # Mass strictly above a token: equal logits share the value of the first of them.
    first = torch.searchsorted(-x, -x)
    kept &= (before.gather(1, first) < top_p[:, None] * total[:, None]) | (top_p >= 1)[:, None] | (first == 0)
    kept &= scaled >= min_p[:, None].log()
    kept &= torch.isfinite(x)
    covered = ~kept[:, -1] & ((k <= few) | (k >= V)) if few < V else torch.ones_like(k, dtype=torch.bool)
    noisy = x / temperature[:, None] + noise.reference(seeds, positions, ids)
    noisy.masked_fill_(~kept, float("-inf"))
    return ids.gather(1, noisy.argmax(-1, keepdim=True))[:, 0], covered


def _check(logits: Tensor, *per_row: Tensor) -> None:
    if logits.dim() != 2 or logits.stride(1) != 1 or not logits.shape[1]:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; it must be [S, V], contiguous in its last dimension")
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    types = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64)
    for name, dtype, tensor in zip(names, types, per_row, strict=True):
        if tensor.shape != logits.shape[:1] or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be {dtype} ({logits.shape[0]},)")


_GROUP = tl.constexpr(
    128
)  # tokens that share a maximum: 0.8 % of the logits' bytes, and top-k up to V/128 bounded by it
_CHUNK_GROUPS = 32  # groups a program of the scan holds: 4,096 tokens, 32 a thread
_NONE = tl.constexpr(-2139095041)  # order key of -inf


def _launch(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    out: Tensor,
) -> None:
    S, V = logits.shape
    if S == 0:
        return
    groups = cdiv(V, 128)
    chunks = cdiv(groups, _CHUNK_GROUPS)
    floats = torch.empty((S, groups + 3 * chunks), dtype=torch.float32, device=logits.device)
    ints = torch.empty((S, groups + chunks), dtype=torch.int32, device=logits.device)
    per_row = (temperature, top_k, top_p, min_p, seeds, positions)
    _scan_kernel[(S, chunks)](
        logits, logits.stride(0), *per_row, floats, ints, V, groups, chunks, CHUNK_GROUPS=_CHUNK_GROUPS, num_warps=4
    )
    # One program a row; 64 groups (8,192 tokens, 32 a thread) at a time, most rows need no more than one such tile.
    _select_kernel[(S,)](
        logits, logits.stride(0), *per_row, floats, ints, out, V, groups, chunks,
        GROUPS=next_power_of_2(groups), CHUNKS=next_power_of_2(chunks), TILE=min(64, next_power_of_2(groups)),
        num_warps=8,
    )  # fmt: skip


@jit
def _order_key(x):
    """int32 that sorts as the float does."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _is_filtered(temperature, k, p, min_p, V):
    return (temperature > 0) & (((k > 0) & (k < V)) | (p < 1) | (min_p > 0))


@jit
def _scan_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    floats_ptr, ints_ptr, V, groups, chunks, CHUNK_GROUPS: tl.constexpr,
):  # fmt: skip
    """Read the logits once: group maxima, maximum and mass of the chunk; or, in a row without filters, its winner."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = chunk * CHUNK_GROUPS + tl.arange(0, CHUNK_GROUPS)
    ids = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    x = tl.load(logits_ptr + row * row_stride + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    temperature = tl.load(temperature_ptr + row)
    filtered = _is_filtered(
        temperature, tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row), V
    )  # fmt: skip
    floats = floats_ptr + row * (groups + 3 * chunks)
    if filtered:
        best = tl.max(x, 1)
        tl.store(floats + group, best, mask=group < groups)
        top = tl.max(best, 0)
        pivot = tl.where(top == float("-inf"), 0.0, top)
        tl.store(floats + groups + chunk, top)
        tl.store(floats + groups + chunks + chunk, tl.sum(tl.sum(tl.exp((x - pivot) / temperature), 1), 0))
    else:
        if temperature > 0:
            key = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
            x = x / temperature + gumbel(key, ids)
        top = tl.max(tl.max(x, 1), 0)
        winner = tl.min(tl.min(tl.where(x == top, ids, V), 1), 0)
        tl.store(floats + groups + 2 * chunks + chunk, top)
        tl.store(ints_ptr + row * (groups + chunks) + groups + chunk, winner)


@jit
def _select_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    floats_ptr, ints_ptr, out_ptr, V, groups, chunks,
    GROUPS: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature, k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
    p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    floats, ints = floats_ptr + row * (groups + 3 * chunks), ints_ptr + row * (groups + chunks)
    chunk = tl.arange(0, CHUNKS)
    if _is_filtered(temperature, k, p, min_p, V):
        k = tl.where(k < V, k, 0)
        logits = logits_ptr + row * row_stride
        top, total, floor, n = _superset(floats, ints, chunk, temperature, k, p, min_p, groups, chunks, GROUPS)
        if k > 0:
            floor, total = _kth_largest(logits, ints, floor, _order_key(top), k, top, temperature, n, V, TILE)
        lowest = tl.log(min_p)
        key = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
        winner, at, above = _noisiest_above(logits, ints, floor - 1, top, temperature, lowest, key, n, V, TILE)
        done = p >= 1
        while not done:
            then, then_at, above = _noisiest_above(logits, ints, at, top, temperature, lowest, key, n, V, TILE)
            done = (above < p * total) | (above == 0)
            winner, at = tl.where(done, winner, then), tl.where(done, at, then_at)
        tl.store(out_ptr + row, tl.where(winner < V, winner, 0).to(tl.int64))
    else:
        best = tl.load(floats + groups + 2 * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
        ids = tl.load(ints + groups + chunk, mask=chunk < chunks, other=V)
        winner = tl.min(tl.where(best == tl.max(best, 0), ids, V), 0)
        tl.store(out_ptr + row, winner.to(tl.int64))


@jit
def _superset(floats, ints, chunk, temperature, k, p, min_p, groups, chunks, GROUPS: tl.constexpr):
    """List the groups that may hold an allowed token. Returns best logit, mass, lower bound (key), count of groups."""
    group = tl.arange(0, GROUPS)
    best = tl.load(floats + group, mask=group < groups, other=float("-inf"))
    top = tl.max(best, 0)
    live = chunk < chunks
    chunk_top = tl.load(floats + groups + chunk, mask=live, other=float("-inf"))
    mass = tl.load(floats + groups + chunks + chunk, mask=live, other=0.0)
    total = tl.sum(tl.where(mass > 0, mass * tl.exp((chunk_top - top) / temperature), 0.0), 0)
    keys = _order_key(best).to(tl.int64)
    # By k: at least k groups reach the bound. By p: the groups' best tokens alone weigh p. By min_p: exact.
    weight = tl.where(k > 0, 1.0, tl.exp((best - top) / temperature))
    goal = tl.where(k > 0, k.to(tl.float32), p * total)
    high = _order_key(top).to(tl.int64)
    low = high * 0 + _NONE + 1
    if (k <= 0) & (p >= 1):
        # One ulp of slack: the exact test follows at the draw.
        low = tl.maximum(low, _order_key(top + tl.log(min_p) * temperature * 1.000001).to(tl.int64) - 1)
        low = tl.minimum(low, high)
        high = low
    while low < high:
        middle = low + (high - low + 1) // 2
        reached = tl.sum(tl.where(keys >= middle, weight, 0.0), 0)
        low = tl.where(reached >= goal, middle, low)
        # A bound that lets half as many groups more pass is good enough.
        high = tl.where(reached >= goal, tl.where(reached <= 1.5 * goal, middle, high), middle - 1)
    active = (keys >= low) & (group < groups)
    slot = tl.cumsum(active.to(tl.int32), 0) - 1
    tl.store(ints + slot, group, mask=active)
    tl.debug_barrier()  # the list is read back by other threads
    return top, total, low, tl.sum(active.to(tl.int32), 0)


@jit
def _read_groups(logits, ints, base, n, V, TILE: tl.constexpr):
    slot = base + tl.arange(0, TILE)
    group = tl.load(ints + slot, mask=slot < n, other=0)
    ids = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    x = tl.load(logits + ids, mask=(slot < n)[:, None] & (ids < V), other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    return ids, x, _order_key(x).to(tl.int64)


@jit
def _kth_largest(logits, ints, low, high, k, top, temperature, n, V, TILE: tl.constexpr):
    """Key of the k-th largest logit, by bisection that snaps to values that occur; and the mass from there on."""
    high = high.to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        count, above, below = k * 0, high, low
        for base in range(0, n, TILE):
            _ids, _x, keys = _read_groups(logits, ints, base, n, V, TILE)
            reach = keys >= middle
            count += tl.sum(tl.sum(reach.to(tl.int32), 1), 0)
            above = tl.minimum(above, tl.min(tl.min(tl.where(reach, keys, high), 1), 0))
            below = tl.maximum(below, tl.max(tl.max(tl.where(reach, low, keys), 1), 0))
        high = tl.where(count >= k, tl.where(count == k, above, high), below)
        low = tl.where(count >= k, above, low)
    total = temperature * 0
    for base in range(0, n, TILE):
        _ids, x, keys = _read_groups(logits, ints, base, n, V, TILE)
        total += tl.sum(tl.sum(tl.where(keys >= low, tl.exp((x - top) / temperature), 0.0), 1), 0)
    return low, total


@jit
def _noisiest_above(logits, ints, bound, top, temperature, lowest, noise_key, n, V, TILE: tl.constexpr):
    """Of the tokens whose key is above `bound`: the one with the largest noisy logit, its key, and the mass of all."""
    best, winner, at, mass = temperature * 0 + float("-inf"), V, bound, temperature * 0
    for base in range(0, n, TILE):
        ids, x, keys = _read_groups(logits, ints, base, n, V, TILE)
        scaled = (x - top) / temperature
        over = (keys > bound) & (keys > _NONE)
        mass += tl.sum(tl.sum(tl.where(over, tl.exp(scaled), 0.0), 1), 0)
        noisy = tl.where(over & (scaled >= lowest), x / temperature + gumbel(noise_key, ids), float("-inf"))
        tile_best = tl.max(tl.max(noisy, 1), 0)
        tile_winner = tl.min(tl.min(tl.where((noisy == tile_best) & over, ids, V), 1), 0)
        tile_at = tl.max(tl.max(tl.where(ids == tile_winner, keys, bound), 1), 0)
        # Groups come in order of their ids, so an equal later one has a higher id and loses.
        better = tile_best > best
        best, winner = tl.where(better, tile_best, best), tl.where(better, tile_winner, winner)
        at = tl.where(better, tile_at, at)
    return winner, at, mass

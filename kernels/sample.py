"""Draws one token per row: temperature, then top-k, top-p, min-p, then argmax of logit + Gumbel noise. No sort.

All three filters are thresholds on the logit, ties kept: top-k keeps x >= the k-th largest, top-p keeps x while the
probability strictly above x (among what top-k kept) is below p, min-p keeps what has at least min_p of the best one's.
So the draw is the noisiest token above one threshold, and the threshold need not be known: the noisiest token of a
superset is either allowed, or everything at or below it is out. One pass over the logits finds maxima of groups of 128
tokens and how noisy lots of 1,024 tokens are. A small top-k or min-p bounds the threshold from below by the groups'
maxima, and the tokens from there on are few: sort those (`sample_select.py`). Top-p and a large top-k keep many tokens:
take the few noisiest ones, and weigh what is above them in one more pass (`sample_wide.py`).
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dependent, dispatch, noise
from kernels.dependent import follow
from kernels.language import cdiv, jit_alike, next_power_of_2, tl
from kernels.native import record
from kernels.noise import gumbel, noise_key
from kernels.sample_select import is_bounded, sample_select_kernel
from kernels.sample_wide import GROUP, LIST, LOT, NUM_FOUND, PARTS, PER_ROW, PICKS, sample_weigh_kernel, weights


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
    if dispatch.form(logits) == "native" and logits.dtype == torch.float32:
        return _native(logits, temperature, top_k, top_p, min_p, seeds, positions)
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
    # About one row of a large vocabulary at a time: the temporaries stay in the CPU's cache.
    unfiltered = (drawn & ~filtered).nonzero()[:, 0]
    for rows in torch.split(unfiltered, max(1, (1 << 16) // V)) if unfiltered.numel() else ():
        noisy = noise.reference(seeds[rows], positions[rows], ids).add_(clean[rows] * (1 / temperature[rows, None]))
        out[rows] = noisy.argmax(-1)
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
    inverse = 1 / temperature[:, None]
    scaled = (x - x[:, :1]) * inverse
    weight = scaled.exp()
    kept = x >= x.gather(1, (k.clamp(max=few) - 1)[:, None])
    total = torch.where(
        k < V, (weight * kept).sum(-1), ((logits - x[:, :1]) * inverse).exp_().sum(-1)
    )  # fmt: skip
    before = weight.cumsum(-1) - weight
    # Mass strictly above a token: equal logits share the value of the first of them.
    first = torch.searchsorted(-x, -x)
    kept &= (before.gather(1, first) < top_p[:, None] * total[:, None]) | (top_p >= 1)[:, None] | (first == 0)
    kept &= scaled >= min_p[:, None].log()
    kept &= torch.isfinite(x)
    covered = ~kept[:, -1] & ((k <= few) | (k >= V)) if few < V else torch.ones_like(k, dtype=torch.bool)
    noisy = x * inverse + noise.reference(seeds, positions, ids)
    noisy.masked_fill_(~kept, float("-inf"))
    return ids.gather(1, noisy.argmax(-1, keepdim=True))[:, 0], covered


def _native(logits: Tensor, *per_row: Tensor) -> Tensor:
    S, V = logits.shape
    out = record.empty((S,), torch.int64)
    tensors = (logits, *(tensor.contiguous() for tensor in per_row), out)
    numbers, pointers = (S, V, logits.stride(0)), tuple(map(record.pointer, tensors))
    record.call([record.Record(record.SAMPLE, numbers, pointers)], tensors)
    return out


def _check(logits: Tensor, *per_row: Tensor) -> None:
    if logits.dim() != 2 or logits.stride(1) != 1 or not logits.shape[1]:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; it must be [S, V], contiguous in its last dimension")
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    types = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64)
    for name, dtype, tensor in zip(names, types, per_row, strict=True):
        if tensor.shape != logits.shape[:1] or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be {dtype} ({logits.shape[0]},)")


_CHUNK_GROUPS = 32  # groups a program of the scan holds: 4,096 tokens, 32 a thread


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
    chunks, lots = cdiv(groups, _CHUNK_GROUPS), cdiv(V, LOT.value)
    # Of each row: its groups' maxima, how noisy its lots are, its chunks' maxima and masses, the picks, top and limit.
    row_floats, row_ints = groups + lots + 2 * chunks + PICKS.value + 2, LIST.value + groups
    floats = torch.empty((S, row_floats), dtype=torch.float32, device=logits.device)
    ints = torch.empty((S, row_ints), dtype=torch.int32, device=logits.device)
    above = torch.empty((S, PARTS.value, PICKS.value), dtype=torch.float32, device=logits.device)
    # Candidates of a row with top-k that are sorted in registers, two a thread; more take the slow road.
    candidates = min(512, next_power_of_2(V))
    found = torch.empty((S, candidates), dtype=torch.int64, device=logits.device)
    rows, sizes = (logits, logits.stride(0), temperature), (V, groups, lots, chunks, row_floats, row_ints)
    filters, noises, early = (top_k, top_p, min_p), (seeds, positions), dependent.launch(logits)
    _sample_scan_kernel[(S, chunks)](
        *rows, *filters, *noises, floats, ints, *sizes, CHUNK_GROUPS=_CHUNK_GROUPS, num_warps=4, **early
    )
    # One program a row; 32 groups (4,096 tokens, 16 a thread) at a time, so that 256 rows run at once.
    tile, lots_block = min(32, next_power_of_2(groups)), next_power_of_2(lots)
    sample_select_kernel[(S,)](
        *rows, *filters, *noises, floats, ints, found, out, *sizes, GROUPS=next_power_of_2(groups), LOTS=lots_block,
        CHUNKS=next_power_of_2(chunks), TILE=tile, CANDIDATES=candidates, num_warps=8,
        **early,
    )  # fmt: skip
    sample_weigh_kernel[(S, PARTS.value)](
        *rows, *noises, floats, ints, above, out, *sizes, LOTS=lots_block, TILE=tile, num_warps=4, **early
    )


@jit_alike(*PER_ROW)
def _sample_scan_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    floats_ptr, ints_ptr, V, groups, lots, chunks, row_floats, row_ints, CHUNK_GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Read the logits once: maxima and mass for filters; how noisy each group is, unless a bound makes it needless."""
    follow(PDL)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # A warp has every fourth line of a tile (of four warps); these shall be a lot, whose maximum then needs no other.
    LOTS: tl.constexpr = CHUNK_GROUPS * GROUP // LOT
    line = tl.arange(0, CHUNK_GROUPS)
    group = chunk * CHUNK_GROUPS + line % LOTS * (LOT // GROUP) + line // LOTS
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits_ptr + row * row_stride + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    temperature, k, p = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    floats = floats_ptr + row * row_floats
    bounded = is_bounded(temperature, k, p, tl.load(min_p_ptr + row), V)
    if bounded | (temperature > 0) & ((p < 1) | (k > 0) & (k < V)):
        best = tl.max(x, 1)
        top = tl.max(best, 0)
        pivot = tl.where(top == float("-inf"), 0.0, top)
        tl.store(floats + group, best, mask=group < groups)
        tl.store(floats + groups + lots + chunk, top)
        tl.store(floats + groups + lots + chunks + chunk, tl.sum(weights(x, pivot, 1 / temperature)))
        if chunk == 0:
            tl.store(ints_ptr + row * row_ints + NUM_FOUND, 0)
    if not bounded:
        if temperature > 0:
            key = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
            x = x * (1 / temperature) + gumbel(key, ids)
        lot = chunk * LOTS + tl.arange(0, LOTS)
        of_lots = tl.max(tl.max(tl.reshape(x, [LOT // GROUP, LOTS, GROUP]), 0), 1)
        tl.store(floats + groups + lot, of_lots, mask=lot < lots)

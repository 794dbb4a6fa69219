"""Draws whose filter keeps many tokens (top-p alone, a large top-k alone): a few picks, and one pass weighs them all.

The noisiest token of all is the draw if what is above it weighs less than p (counts less than k). If not, it and all at
or below it are out, and the noisiest token above it is next. So the second kernel lists a row's `picks`: the noisiest
token, the noisiest of those with a larger logit, and so on. It reads the few lots of tokens that these lie in, for the
scan left how noisy each lot is. Then many programs weigh what is above each pick, in one pass over the logits; the
first pick that is light enough is the draw. A row whose picks are all too heavy (one in a thousand) goes on alone.
"""

# mypy: disable-error-code="no-untyped-def"
from kernels.language import INTERPRETED, jit, tl
from kernels.noise import gumbel, noise_key

LOT = tl.constexpr(1024)  # tokens of which it is known how noisy the noisiest is
GROUP = tl.constexpr(128)  # tokens that share a maximum: 0.8 % of the logits' bytes; top-k up to V/128 bounded by it
# An infinite logit counts as this one and is the best all the same: inf - inf is no number, and a loop that waits for a
# mass to become small enough would wait for ever.
LARGEST = tl.constexpr(3.4028234663852886e38)
PICKS = tl.constexpr(8)  # of a row, at most; p = 0.1 needs more in 0.3 % of draws
# What a row has of integers: the picks' ids, then these, then the list of groups that are to be read.
NUM_PICKS, BY_COUNT, NUM_FOUND, LIST = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10), tl.constexpr(11)
_LOG2_E = tl.constexpr(1.4426950408889634)


@jit
def weights(x, pivot, inverse):
    """exp((x - pivot) * inverse), by the GPU's own instruction; what is below 2^-126 weighs nothing."""
    if INTERPRETED:
        return tl.exp2((x - pivot) * (inverse * _LOG2_E))
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=r,r", [(x - pivot) * (inverse * _LOG2_E)], tl.float32, is_pure=True, pack=1
    )


@jit
def pick_above(logits, noisiest, lot, floor, temperature, key, V):
    """Look into the noisiest lot for its noisiest token above `floor`: its id and logit, and whether it is the pick.

    `noisiest` [lots] bounds from above how noisy each lot's tokens above `floor` are, -inf if it has none; returned
    are new bounds, after a pick those for the tokens above it, and whether there was anything to look at.
    """
    high, here = tl.max(noisiest, 0, return_indices=True)
    ids = here * LOT + tl.arange(0, LOT)
    x = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    noisy = tl.where(temperature > 0, x * (1 / temperature) + gumbel(key, ids), x)
    noisy = tl.where(x > floor, noisy, float("-inf"))  # no number is not
    own, place = tl.max(noisy, 0, return_indices=True)  # the first of equal ones
    winner = here * LOT + place
    at = tl.load(logits + winner).to(tl.float32)
    is_pick = (own >= high) & (own > float("-inf"))
    own = tl.max(tl.where(x > tl.where(is_pick, at, floor), noisy, float("-inf")), 0)
    return tl.where(lot == here, own, noisiest), high > float("-inf"), is_pick, winner, at


@jit
def list_picks(logits, noisiest, lot, picks, pick_ids, most, top, temperature, key, V):
    """Write logits and ids of up to PICKS picks, each the noisiest token above the one before; return how many.

    At most `most` lots are read: about one in p of them holds a token that top-p keeps.
    """
    n, reads, floor = most * 0, most * 0, temperature * 0 + float("-inf")
    while (reads == 0) | (n < PICKS) & (reads < most) & (floor < top):
        noisiest, _left, is_pick, winner, at = pick_above(logits, noisiest, lot, floor, temperature, key, V)
        is_pick = is_pick | (reads == 0)
        if is_pick:
            tl.store(picks + n, tl.minimum(at, LARGEST))
            tl.store(pick_ids + n, winner)
        floor, n, reads = tl.where(is_pick, at, floor), n + is_pick.to(tl.int32), reads + 1
    return n


@jit
def sample_weigh_kernel(
    logits_ptr, row_stride, temperature_ptr, floats_ptr, ints_ptr, above_ptr, V, groups, lots, chunks, row_floats,
    row_ints, CHUNK_GROUPS: tl.constexpr,
):  # fmt: skip
    """Weigh what lies above each pick of a row (count it for top-k) in one chunk of the logits."""
    # The scan's last chunks are the likeliest still in the L2 cache.
    row, chunk = tl.program_id(0).to(tl.int64), chunks - 1 - tl.program_id(1)
    floats, ints = floats_ptr + row * row_floats, ints_ptr + row * row_ints
    n = tl.load(ints + NUM_PICKS)
    if n > 0:
        picks = floats + groups + lots + 2 * chunks
        group = chunk * CHUNK_GROUPS + tl.arange(0, CHUNK_GROUPS)
        best = tl.load(floats + group, mask=group < groups, other=float("-inf"))
        heavy = best > tl.load(picks)  # the first pick is the lowest
        ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits_ptr + row * row_stride + ids, mask=heavy[:, None] & (ids < V), other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.minimum(tl.where(x == x, x, float("-inf")), LARGEST)
        weight = weights(x, tl.load(picks + PICKS), 1 / tl.load(temperature_ptr + row))
        weight = tl.where(tl.load(ints + BY_COUNT) > 0, 1.0, weight)
        above = above_ptr + (row * chunks + chunk) * PICKS
        for pick in range(n):
            tl.store(above + pick, tl.sum(tl.where(x > tl.load(picks + pick), weight, 0.0)))


@jit
def sample_settle_kernel(
    logits_ptr, row_stride, temperature_ptr, seeds_ptr, positions_ptr, floats_ptr, ints_ptr, above_ptr, out_ptr,
    V, groups, lots, chunks, row_floats, row_ints, LOTS: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Take the first pick that is light enough; where none is, find the next ones and weigh each alone."""
    row = tl.program_id(0).to(tl.int64)
    floats, ints = floats_ptr + row * row_floats, ints_ptr + row * row_ints
    n = tl.load(ints + NUM_PICKS)
    if n > 0:
        picks, chunk, pick = floats + groups + lots + 2 * chunks, tl.arange(0, CHUNKS), tl.arange(0, PICKS)
        top, limit = tl.load(picks + PICKS), tl.load(picks + PICKS + 1)
        of_chunk = tl.load(
            above_ptr + (row * chunks + chunk[:, None]) * PICKS + pick[None, :],
            mask=(chunk[:, None] < chunks) & (pick[None, :] < n), other=0.0,
        )  # fmt: skip
        first = tl.min(tl.where(_light(tl.sum(of_chunk, 0), limit) & (pick < n), pick, PICKS), 0)
        winner = tl.load(ints + tl.minimum(first, n - 1))
        if first == PICKS:
            logits, lot = logits_ptr + row * row_stride, tl.arange(0, LOTS)
            temperature, by_count = tl.load(temperature_ptr + row), tl.load(ints + BY_COUNT) > 0
            key = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
            noisiest = tl.load(floats + groups + lot, mask=lot < lots, other=float("-inf"))
            floor, light, left = tl.load(picks + n - 1), n < 0, n > 0
            # Ends: a read makes the floor or one of the bounds, which are few, better.
            while (not light) & left:
                noisiest, left, is_pick, token, at = pick_above(logits, noisiest, lot, floor, temperature, key, V)
                if is_pick:
                    above = _above(logits, at, top, 1 / temperature, by_count, groups, V, TILE)
                    light, winner, floor = _light(above, limit), token, at
        tl.store(out_ptr + row, winner.to(tl.int64))


@jit
def _light(above, limit):
    """Whether so little is above a token that it is drawn; what is no number is, lest a loop wait for it."""
    return (above == 0) | ((above >= limit) == 0)


@jit
def _above(logits, floor, top, inverse, by_count, groups, V, TILE: tl.constexpr):
    """Weigh or count the tokens above `floor`, all groups one after the other."""
    above = inverse * 0
    for base in range(0, groups, TILE):
        ids = (base + tl.arange(0, TILE))[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        x = tl.minimum(tl.where(x == x, x, float("-inf")), LARGEST)
        weight = tl.where(by_count, 1.0, weights(x, top, inverse))
        above += tl.sum(tl.where(x > floor, weight, 0.0))
    return above

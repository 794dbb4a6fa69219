"""Draws whose filter keeps many tokens (top-p alone, a large top-k alone): a few picks, and one pass weighs them all.

The noisiest token of all is the draw if what is above it weighs less than p (counts less than k). If not, it and all at
or below it are out, and the noisiest token above it is next. So the second kernel lists a row's `picks`: the noisiest
token, the noisiest of those with a larger logit, and so on. It reads the few lots of tokens that these lie in, for the
scan left how noisy each lot is. Then several programs a row weigh what is above each pick, in one pass over the groups
that hold anything above the first; the last one to end takes the first pick that is light enough. Where all are too
heavy (one row in a thousand) it goes on alone, pick after pick.
"""

# mypy: disable-error-code="no-untyped-def"
from kernels.dependent import follow
from kernels.language import INTERPRETED, jit, jit_alike, tl
from kernels.noise import gumbel, noise_key

LOT = tl.constexpr(1024)  # tokens of which it is known how noisy the noisiest is
GROUP = tl.constexpr(128)  # tokens that share a maximum: 0.8 % of the logits' bytes; top-k up to V/128 bounded by it
# An infinite logit counts as this one and is the best all the same: inf - inf is no number, and a loop that waits for a
# mass to become small enough would wait for ever.
LARGEST = tl.constexpr(3.4028234663852886e38)
PER_ROW = ("temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seeds_ptr", "positions_ptr")
PICKS = tl.constexpr(8)  # of a row, at most; p = 0.1 needs more in 0.3 % of draws
PARTS = tl.constexpr(8)  # programs that weigh a row; a launch that has nothing to weigh takes 0.7 us for each
# What a row has of integers: the picks' ids, then these, then the list of groups that are to be read.
NUM_PICKS, BY_COUNT, NUM_FOUND = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10)
NUM_GROUPS, NUM_WEIGHED, LIST = tl.constexpr(11), tl.constexpr(12), tl.constexpr(13)
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
    """Write logits and ids of up to PICKS picks, each the noisiest token above the one before.

    Return how many they are, and the logit and id of the first. At most `most` lots are read: about one in p of these
    holds a token that top-p keeps.
    """
    noisiest, _left, _is_pick, first_id, first = pick_above(logits, noisiest, lot, float("-inf"), temperature, key, V)
    tl.store(picks, first)
    tl.store(pick_ids, first_id)
    n, reads, floor = most * 0 + 1, most * 0 + 1, first
    while (n < PICKS) & (reads < most) & (floor < top):
        noisiest, _left, is_pick, winner, at = pick_above(logits, noisiest, lot, floor, temperature, key, V)
        if is_pick:
            tl.store(picks + n, at)
            tl.store(pick_ids + n, winner)
        floor, n, reads = tl.where(is_pick, at, floor), n + is_pick.to(tl.int32), reads + 1
    return n, first, first_id


@jit_alike(*PER_ROW)
def sample_weigh_kernel(
    logits_ptr, row_stride, temperature_ptr, seeds_ptr, positions_ptr, floats_ptr, ints_ptr, above_ptr, out_ptr,
    V, groups, lots, chunks, row_floats, row_ints, LOTS: tl.constexpr, TILE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Weigh what lies above each pick of a row (count it for top-k); and draw, if all of the row is weighed."""
    follow(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    floats, ints, logits = floats_ptr + row * row_floats, ints_ptr + row * row_ints, logits_ptr + row * row_stride
    n = tl.load(ints + NUM_PICKS)
    if n > 0:
        temperature, picks = tl.load(temperature_ptr + row), floats + groups + lots + 2 * chunks
        pick = tl.arange(0, PICKS)
        above = _above(logits, ints, picks, n, part, PARTS, 1 / temperature, V, TILE)
        tl.store(above_ptr + (row * PARTS + part) * PICKS + pick, above)
        tl.debug_barrier()
        if tl.atomic_add(ints + NUM_WEIGHED, 1, sem="acq_rel") == PARTS - 1:
            each = tl.arange(0, PARTS)[:, None] * PICKS + pick[None, :]
            above = tl.sum(tl.load(above_ptr + row * PARTS * PICKS + each), 0)
            first = tl.min(tl.where(_is_light(above, tl.load(picks + PICKS + 1)) & (pick < n), pick, PICKS), 0)
            winner = tl.load(ints + tl.minimum(first, n - 1))
            if first == PICKS:
                key, noisiest = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row)), floats + groups
                winner = _search_on(logits, ints, picks, noisiest, n, winner, temperature, key, V, lots, LOTS, TILE)
            tl.store(out_ptr + row, winner.to(tl.int64))


@jit
def _search_on(
    logits, ints, picks, noisiest_ptr, n, winner, temperature, key, V, lots, LOTS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Find pick after pick above the last one, until one is light enough, with one program alone."""
    lot = tl.arange(0, LOTS)
    noisiest = tl.load(noisiest_ptr + lot, mask=lot < lots, other=float("-inf"))
    floor, light, left = tl.load(picks + n - 1), n < 0, n > 0
    # Ends: a read makes the floor or one of the bounds, which are few, better.
    while (not light) & left:
        noisiest, left, is_pick, token, at = pick_above(logits, noisiest, lot, floor, temperature, key, V)
        if is_pick:
            tl.store(picks, at)
            tl.debug_barrier()
            above = tl.sum(_above(logits, ints, picks, 1, 0, 1, 1 / temperature, V, TILE), 0)
            light, winner, floor = _is_light(above, tl.load(picks + PICKS + 1)), token, at
    return winner


@jit
def _is_light(above, limit):
    """Whether so little is above a token that it is drawn; what is no number is, lest a loop wait for it."""
    return (above == 0) | ((above >= limit) == 0)


@jit
def _above(logits, ints, picks, n, part, parts, inverse, V, TILE: tl.constexpr):
    """Weigh or count [PICKS] what is above each of the n picks, in every parts-th tile of the listed groups."""
    groups, top, by_count = tl.load(ints + NUM_GROUPS), tl.load(picks + PICKS), tl.load(ints + BY_COUNT) > 0
    above, slot = tl.zeros([PICKS], tl.float32), tl.arange(0, PICKS)
    for base in range(part * TILE, groups, parts * TILE):
        place = base + tl.arange(0, TILE)
        group = tl.load(ints + LIST + place, mask=place < groups, other=0)
        ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + ids, mask=(place < groups)[:, None] & (ids < V), other=float("-inf")).to(tl.float32)
        weight = tl.where(by_count, 1.0, weights(x, top, inverse))
        for pick in range(n):  # what is no number is not above one
            heavier = tl.sum(tl.where(x > tl.load(picks + pick), weight, 0.0))
            above += tl.where(slot == pick, heavier, 0.0)
    return above

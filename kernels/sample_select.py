"""The second pass of a draw: one program a row looks at what the scan left and at the few groups that matter."""

# mypy: disable-error-code="no-untyped-def"
from kernels.dependent import follow
from kernels.language import jit, jit_alike, tl
from kernels.noise import gumbel, noise_key
from kernels.sample_wide import (
    BY_COUNT,
    GROUP,
    LARGEST,
    LIST,
    NUM_FOUND,
    NUM_GROUPS,
    NUM_PICKS,
    NUM_WEIGHED,
    PER_ROW,
    PICKS,
    list_picks,
    pick_above,
    weights,
)  # fmt: skip

MOST_SORTED = tl.constexpr(256)  # a top-k up to here is likely to leave no more candidates than can be sorted
_NONE = tl.constexpr(-2139095041)  # order key of -inf


@jit
def is_bounded(temperature, k, p, min_p, V):
    """Whether a row's draw is looked for among all tokens from a bound on, instead of from the noisiest down."""
    return (temperature > 0) & ((k > 0) & (k < V) & ((k <= MOST_SORTED) | (p < 1)) | (min_p > 0))


@jit
def _order_key(x):
    """int32 that sorts as the float does (-0.0 must not come); applied to a key it gives the float's bits back."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit_alike(*PER_ROW)
def sample_select_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    floats_ptr, ints_ptr, found_ptr, out_ptr, V, groups, lots, chunks, row_floats, row_ints,
    GROUPS: tl.constexpr, LOTS: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr, CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Draw the rows that need no second pass; of the others, list the picks."""
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    temperature, k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
    p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    floats, ints, logits = floats_ptr + row * row_floats, ints_ptr + row * row_ints, logits_ptr + row * row_stride
    group, lot, chunk = tl.arange(0, GROUPS), tl.arange(0, LOTS), tl.arange(0, CHUNKS)
    inverse, bounded = 1 / temperature, is_bounded(temperature, k, p, min_p, V)
    k = tl.where(k < V, k, 0)
    key = noise_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    num_picks, winner = V * 0, V
    if bounded:
        best, top, total = _summary(floats, group, chunk, groups, lots, chunks, inverse)
        winner = _draw_bounded(
            logits, ints, found_ptr + row * CANDIDATES, best, top, total, group, groups, k, p, tl.log(min_p),
            temperature, key, V, TILE, CANDIDATES,
        )  # fmt: skip
    else:
        noisiest = tl.load(floats + groups + lot, mask=lot < lots, other=float("-inf"))
        if (temperature > 0) & ((p < 1) | (k > 0)):
            best, top, total = _summary(floats, group, chunk, groups, lots, chunks, inverse)
            picks = floats + groups + lots + 2 * chunks
            # One read in p is a token that top-p keeps: so many that none is one in a thousand times.
            most = tl.where(k > 0, 16.0, tl.minimum(2 + 7 / -tl.log(1 - p), 32.0)).to(tl.int32)
            num_picks, first, winner = list_picks(logits, noisiest, lot, picks, ints, most, top, temperature, key, V)
            n = _list_groups(ints + LIST, group, best > first)
            num_picks = tl.where(n > 0, num_picks, 0)  # else nothing is above the first one
            tl.store(picks + PICKS, top)
            tl.store(picks + PICKS + 1, tl.where(k > 0, k.to(tl.float32), p * total))
            # Flat logits: a first pick with 1 - p of the mass at or below it in a part of the row needs no weighing.
            if (k <= 0) & (p >= 0.75) & (2 * n > groups):
                below = _mass_below(logits, first, (1 - p) * total * 1.001, top, inverse, groups, V, 2 * TILE)
                num_picks = tl.where(below > (1 - p) * total * 1.001, 0, num_picks)
            tl.store(ints + BY_COUNT, k)
            tl.store(ints + NUM_GROUPS, n)
            tl.store(ints + NUM_WEIGHED, 0)
        else:
            _noisiest, _left, _is_pick, winner, _at = pick_above(
                logits, noisiest, lot, float("-inf"), temperature, key, V
            )
    tl.store(ints + NUM_PICKS, num_picks)
    tl.store(out_ptr + row, tl.where(winner < V, winner, 0).to(tl.int64))


@jit
def _mass_below(logits, at, need, top, inverse, groups, V, TILE: tl.constexpr):
    """What the last tokens of a row up to logit `at` weigh, read until that is more than `need` or will hardly be."""
    below, base, going = inverse * 0, groups, groups > 0
    while going:
        base -= TILE  # from the end, which the scan read last
        ids = (base + tl.arange(0, TILE))[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + ids, mask=(ids >= 0) & (ids < V), other=float("-inf")).to(tl.float32)
        below += tl.sum(tl.where(x <= at, weights(x, top, inverse), 0.0))
        likely = below * groups > 3 * need * (groups - base)
        going = (below <= need) & likely & (4 * base > 3 * groups)
    return below


@jit
def _draw_bounded(
    logits, ints, found, best, top, total, group, groups, k, p, lowest, temperature, key, V,
    TILE: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Draw among the tokens from a bound on, which are few but for flat logits and many equal ones."""
    inverse, counter, list_ = 1 / temperature, ints + NUM_FOUND, ints + LIST
    if k > 0:
        bound = _kth_group(_order_key(best), _order_key(top), k)
    else:  # one ulp of slack: the exact test follows
        bound = _order_key(top + lowest * temperature * 1.000001) - 1
        bound = tl.minimum(tl.maximum(bound, _NONE + 1), _order_key(top))
    n = _list_groups(list_, group, (_order_key(best) >= bound) & (group < groups))
    count = _collect(logits, list_, found, counter, bound, n, V, TILE, CANDIDATES)
    if count <= CANDIDATES:
        winner = _draw_sorted(found, count, k, p, total, lowest, inverse, key, CANDIDATES)
    else:
        if k > 0:
            bound, total = _kth_largest(logits, list_, bound, _order_key(top), k, top, inverse, n, V, TILE)
        winner, at = _noisiest_above(logits, list_, bound - 1, top, inverse, lowest, key, n, V, TILE)
        winner = _settle(logits, list_, winner, at, p, total, top, inverse, lowest, key, n, V, TILE)
    return winner


@jit
def _summary(floats, group, chunk, groups, lots, chunks, inverse):
    """The groups' maxima, the best logit and the mass of all, as the scan left them."""
    best = tl.minimum(tl.load(floats + group, mask=group < groups, other=float("-inf")), LARGEST) + 0.0
    top = tl.max(best, 0)
    chunk_top = tl.load(floats + groups + lots + chunk, mask=chunk < chunks, other=float("-inf"))
    mass = tl.load(floats + groups + lots + chunks + chunk, mask=chunk < chunks, other=0.0)
    return best, top, tl.sum(tl.where(mass > 0, mass * weights(chunk_top, top, inverse), 0.0), 0)


@jit
def _kth_group(keys, top, k):
    """A bound (key) that at least k groups reach and, but for ties, at most half as many more."""
    low, high = top.to(tl.int64) * 0 + _NONE + 1, top.to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        reached = tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached >= k, tl.where(2 * reached <= 3 * k, middle, high), middle - 1)
    return low.to(tl.int32)


@jit
def _list_groups(ints, group, active):
    """Write the numbers of the active groups one after the other; return how many they are."""
    slot = tl.cumsum(active.to(tl.int32), 0) - 1
    tl.store(ints + slot, group, mask=active)
    tl.debug_barrier()  # the list is read back by other threads
    return tl.sum(active.to(tl.int32), 0)


@jit
def _read_groups(logits, ints, base, n, V, TILE: tl.constexpr):
    slot = base + tl.arange(0, TILE)
    group = tl.load(ints + slot, mask=slot < n, other=0)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + ids, mask=(slot < n)[:, None] & (ids < V), other=float("-inf")).to(tl.float32)
    x = tl.minimum(tl.where(x == x, x, float("-inf")), LARGEST) + 0.0
    return ids, x, _order_key(x)


@jit
def _collect(logits, ints, found, counter, bound, n, V, TILE: tl.constexpr, CANDIDATES: tl.constexpr):
    """Write (key, id) of all tokens from `bound` on, in any order; return their number, which may exceed the space."""
    for base in range(0, n, TILE):
        ids, _x, keys = _read_groups(logits, ints, base, n, V, TILE)
        reach = keys >= bound
        slot = tl.atomic_add(counter + ids * 0, 1, mask=reach, sem="relaxed", scope="cta")
        entry = (keys.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
        tl.store(found + slot, entry, mask=reach & (slot < CANDIDATES))
    tl.debug_barrier()
    return tl.atomic_add(counter, 0, sem="relaxed", scope="cta")


@jit
def _draw_sorted(found, count, k, p, total, lowest, inverse, noise_key, CANDIDATES: tl.constexpr):
    """Draw among the candidates: sorted by logit, then id, so that no order of arrival shows in a sum."""
    rank = tl.arange(0, CANDIDATES)
    entry = tl.load(found + rank, mask=rank < count, other=-0x8000000000000000)
    entry = tl.sort(entry, descending=True)
    keys, ids = (entry >> 32).to(tl.int32), (0x7FFFFFFF - (entry & 0x7FFFFFFF)).to(tl.int32)
    x = _order_key(keys.to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)
    kth = tl.min(tl.where(rank == tl.minimum(tl.where(k > 0, k, count), count) - 1, keys, 0x7FFFFFFF), 0)
    kept = (rank < count) & (keys >= kth)
    top = tl.max(tl.where(kept, x, float("-inf")), 0)
    scaled = (x - top) * inverse
    weight = tl.where(kept, tl.exp(scaled), 0.0)
    total = tl.where(k > 0, tl.sum(weight, 0), total)
    noisy = tl.where(kept & (scaled >= lowest), x * inverse + gumbel(noise_key, ids), float("-inf"))
    winner, done = tl.min(ids, 0), count < 0
    while not done:
        noisiest = tl.max(noisy, 0)
        winner = tl.min(tl.where(noisy == noisiest, ids, 0x7FFFFFFF), 0)
        at = tl.max(tl.where(ids == winner, keys, _NONE), 0)
        above = tl.sum(tl.where(keys > at, weight, 0.0), 0)
        done = (p >= 1) | (above < p * total) | (above == 0)
        noisy = tl.where(keys > at, noisy, float("-inf"))
    return winner


@jit
def _kth_largest(logits, ints, low, high, k, top, inverse, n, V, TILE: tl.constexpr):
    """Key of the k-th largest logit, by bisection that snaps to values that occur; and the mass from there on."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        count, above, below = k * 0, high.to(tl.int32), low.to(tl.int32)
        cut = middle.to(tl.int32)
        for base in range(0, n, TILE):
            _ids, _x, keys = _read_groups(logits, ints, base, n, V, TILE)
            reach = keys >= cut
            count += tl.sum(tl.sum(reach.to(tl.int32), 1), 0)
            above = tl.minimum(above, tl.min(tl.min(tl.where(reach, keys, 0x7FFFFFFF), 1), 0))
            below = tl.maximum(below, tl.max(tl.max(tl.where(reach, _NONE, keys), 1), 0))
        high = tl.where(count >= k, tl.where(count == k, above.to(tl.int64), high), below.to(tl.int64))
        low = tl.where(count >= k, above.to(tl.int64), low)
    floor = low.to(tl.int32)
    return floor, _mass_above(logits, ints, floor - 1, top, inverse, n, V, TILE)


@jit
def _mass_above(logits, ints, bound, top, inverse, n, V, TILE: tl.constexpr):
    mass = inverse * 0
    for base in range(0, n, TILE):
        _ids, x, keys = _read_groups(logits, ints, base, n, V, TILE)
        mass += tl.sum(tl.sum(tl.where(keys > bound, tl.exp((x - top) * inverse), 0.0), 1), 0)
    return mass


@jit
def _noisiest_above(logits, ints, bound, top, inverse, lowest, noise_key, n, V, TILE: tl.constexpr):
    """Of the tokens whose key is above `bound` and that min-p allows: the noisiest one, and its key."""
    best, winner, at = inverse * 0 + float("-inf"), V, bound
    for base in range(0, n, TILE):
        ids, x, keys = _read_groups(logits, ints, base, n, V, TILE)
        over = (keys > bound) & (keys > _NONE) & ((x - top) * inverse >= lowest)
        noisy = tl.where(over, x * inverse + gumbel(noise_key, ids), float("-inf"))
        tile_best = tl.max(tl.max(noisy, 1), 0)
        tile_winner = tl.min(tl.min(tl.where((noisy == tile_best) & over, ids, V), 1), 0)
        tile_at = tl.max(tl.max(tl.where(ids == tile_winner, keys, bound), 1), 0)
        # Groups come in order of their ids, so an equal later one has a higher id and loses.
        better = tile_best > best
        best, winner = tl.where(better, tile_best, best), tl.where(better, tile_winner, winner)
        at = tl.where(better, tile_at, at)
    return winner, at


@jit
def _settle(logits, ints, winner, at, p, total, top, inverse, lowest, noise_key, n, V, TILE: tl.constexpr):
    """Top-p: keep the winner if what is above it weighs less than p of all, or else look above it, and so on."""
    done = p >= 1
    while not done:
        above = _mass_above(logits, ints, at, top, inverse, n, V, TILE)
        done = (above == 0) | ((above >= p * total) == 0)  # what is no number does not hold up the loop
        if not done:
            winner, at = _noisiest_above(logits, ints, at, top, inverse, lowest, noise_key, n, V, TILE)
    return winner

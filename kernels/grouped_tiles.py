"""The tiles of products with 4 bit weights on a Hopper card, as an H200 wants them (see `grouped_hopper`)."""

from typing import NamedTuple

from kernels.grouped_weight import GroupedWeight
from kernels.grouped_words import FRAGMENT_BLOCK, FRAGMENT_ROWS
from kernels.language import cdiv, next_power_of_2

MAX_SPLIT = 8


class Tile(NamedTuple):
    """64 x `groups` x `repeats` outputs and `tokens` rows a tile, by `groups` warpgroups; blocks of a stage; stages;
    parts of the sum; whether a warp of its own copies, or all between products."""

    groups: int
    repeats: int
    tokens: int
    blocks: int
    stages: int
    split: int
    copies: bool


def tile_for(T: int, weight: GroupedWeight, processors: int) -> Tile:
    """As an H200 wants it: parts of the sum as long as a processor holds all warpgroups at once and each has steps."""
    tokens, (F, E) = min(max(8, next_power_of_2(T)), 128), weight.shape
    # Many outputs: more of them share inputs, but for short groups, which need the registers.
    wide = 2 * FRAGMENT_ROWS * processors <= F and weight.spans == 1
    groups, repeats, stages = {
        8: (2, 1, 4), 16: (2, 1, 4), 32: (2 if wide else 1, 1, 3), 64: (2, 2, 2) if wide else (2, 1, 3), 128: (2, 1, 2)
    }[tokens]  # fmt: skip
    warpgroups = cdiv(F, FRAGMENT_ROWS * groups * repeats) * groups * cdiv(T, tokens)
    held, steps, split = processors * (4 if tokens <= 16 else 2), cdiv(E, 2 * FRAGMENT_BLOCK), 1
    while split < MAX_SPLIT and 2 * split * warpgroups <= held and steps >= 4 * split:
        split *= 2
    # No more stages than steps: the next kernel's weights come where this one's shared memory leaves room.
    return Tile(groups, repeats, tokens, 2, min(stages, cdiv(steps, split)), split, copies=True)


def registers(groups: int, numbers: int, copies: bool) -> dict[str, int]:
    """Return registers of each thread on entry; with a copying warp they are not the assembler's choice."""
    if not copies or numbers > 64:
        return {}
    return {"maxnreg": (64 if numbers <= 16 else 96) if groups == 1 else (80 if numbers <= 32 else 128)}

"""Take computed blocks from elsewhere into the prefix cache: the next sequence that has their prefix finds a hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_svc.engine.roster import Roster

Fill = Callable[[Sequence[int], Sequence[int]], None]
"""Writes (into these blocks, the contents at these places of what came). It comes before any step planned later."""


def adopt(roster: Roster, names: Sequence[bytes], fill: Fill) -> int:
    """Make room for blocks, have them filled, and name them; returns how many of the names are cached now: all or none.

    None when running sequences may need the room. Nobody holds the blocks afterwards: they are as free as any cached
    ones, and newest, so they are evicted last.
    """
    pool = roster.pool
    found = [pool.find(name) for name in names]
    known = [block for block in found if block is not None]
    pool.take(known)  # or making room might evict them
    places = [place for place, block in enumerate(found) if block is None]
    if len(places) + roster.num_running > pool.num_free:
        pool.free(known)
        return 0
    fresh = pool.allocate(len(places))
    if pool.tier is not None:
        pool.tier.drop_unsaved(fresh)
    if fresh:
        fill(fresh, places)
    for place, block in zip(places, fresh, strict=True):
        pool.register(block, names[place])
        found[place] = block
    pool.free([block for block in found if block is not None])
    return len(names)

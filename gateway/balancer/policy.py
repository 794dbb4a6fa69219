"""Which replica takes a request: pure functions over plain data, chosen by name.

A policy gives each candidate a cost in tokens of waiting; the cheapest wins, and among equals the turn decides, so that
an idle fleet is used evenly. A candidate is a ready replica that the prompt fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from wire.messages import Source


class Candidate(NamedTuple):
    """A replica as the balancer sees it now, its own latest placements included.

    `is_home`: where requests with this one's affinity (prompt_cache_key) gather. `saved_tokens` need not be computed
    because they are fetched from `source`; what the fetch takes is off them already.
    """

    replica_id: str
    cached_tokens: int = 0
    waiting_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    max_num_seqs: int = 0
    free_tokens: int = 0
    is_home: bool = False
    saved_tokens: float = 0.0
    source: Source | None = None


Policy = Callable[[Candidate, int], float]
"""The cost of placing a prompt of so many tokens on a candidate."""

# What one running sequence costs a newcomer: it takes a token of every step while the newcomer's prefill lasts a few
# steps, and it holds blocks. In tokens; between "ignore it" (0) and a whole block of prefill (16) per sequence.
_DECODE_TOKENS = 8.0

# What a client says belongs together is at home before the first of them has left blocks behind: half of the prompt is
# taken for known there. So a home wins until it is behind by the other half; real matches count beside it.
_HOME_SHARE = 0.5


def prefix_and_load(candidate: Candidate, num_tokens: int) -> float:
    """Prefill still to do, stretched by how busy the replica is, after what waits there already.

    A long cached prefix thus wins until the replica that holds it is so far behind that computing it anew is sooner.
    A prompt that does not fit the free blocks will push somebody out; that somebody's recomputation counts as well.
    """
    uncached: float = num_tokens - candidate.cached_tokens - candidate.saved_tokens
    if candidate.is_home:
        uncached *= _HOME_SHARE
    short_of_blocks = max(0, uncached - candidate.free_tokens)
    return (
        uncached * (1.0 + _busy(candidate))
        + candidate.waiting_tokens
        + _DECODE_TOKENS * (candidate.num_running + candidate.num_waiting)
        + short_of_blocks
    )


def least_loaded(candidate: Candidate, num_tokens: int) -> float:
    """Load alone; what is cached does not count (for comparison, or for models without a prefix cache)."""
    del num_tokens
    return candidate.waiting_tokens + _DECODE_TOKENS * (candidate.num_running + candidate.num_waiting)


def round_robin(candidate: Candidate, num_tokens: int) -> float:
    """All equal: the turn decides."""
    del candidate, num_tokens
    return 0.0


POLICIES: dict[str, Policy] = {
    "prefix_and_load": prefix_and_load,
    "least_loaded": least_loaded,
    "round_robin": round_robin,
}


def choose(policy: Policy, candidates: Sequence[Candidate], num_tokens: int, turn: int) -> Candidate:
    """Return the candidate of least cost; `turn` (any growing number) picks among equals.

    There must be at least one candidate.
    """
    costs = [policy(candidate, num_tokens) for candidate in candidates]
    least = min(costs)
    best = [candidate for candidate, cost in zip(candidates, costs, strict=True) if cost <= least]
    return best[turn % len(best)]


def fits(num_tokens: int, *, max_model_len: int, num_blocks: int, block_size: int) -> bool:
    """Return whether a replica could ever serve the prompt and one token after it.

    The last generated token is never computed, so its KV needs no room.
    """
    return num_tokens < max_model_len and num_tokens <= num_blocks * block_size


def home_of(affinity: str, replica_ids: Iterable[str]) -> str | None:
    """Return the replica where an affinity is at home: the same for every balancer, and for most keys when one leaves.

    Source: Thaler and Ravishankar, rendezvous hashing (1998).
    """
    if not affinity:
        return None
    return max(replica_ids, key=lambda name: blake2b(f"{affinity} {name}".encode(), digest_size=8).digest())


def _busy(candidate: Candidate) -> float:
    return candidate.num_running / candidate.max_num_seqs if candidate.max_num_seqs > 0 else 0.0

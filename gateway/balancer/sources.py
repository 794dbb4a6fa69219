"""Where a replica may fetch blocks that it has not computed itself, and whether that is faster than computing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wire.messages import ReplicaStatus, Source

# Connecting, asking, and a step of either engine to wait for, each of some milliseconds.
FIXED_S = 0.01

# Until a replica has measured its own: below a 10 Gbit network, far below a unix socket.
FIRST_BYTES_PER_S = 500e6

# Nothing is known of how fast a replica computes before its first prompt; then so many blocks are worth a fetch.
MIN_BLOCKS = 4


class Offer(NamedTuple):
    """A source, and how many tokens of computing it saves, the time of the fetch taken off."""

    source: Source
    saved_tokens: float


def best_offer(
    target: ReplicaStatus, others: Iterable[ReplicaStatus], cached: Mapping[str, int], share: float
) -> Offer | None:
    """Return where a replica best fetches a prompt from; None if it had better compute it (see `saved_tokens`).

    `cached` tells how many leading tokens of it each replica holds.
    """
    own = cached.get(target.replica_id, 0)
    longest = max(
        (other for other in others if cached.get(other.replica_id, 0) > own and can_fetch(target, other)),
        key=lambda other: cached[other.replica_id],
        default=None,
    )
    if longest is None:
        return None
    num_tokens = cached[longest.replica_id]
    saved = saved_tokens(target, num_tokens - own, share)
    if saved is None:
        return None
    return Offer(Source(replica_id=longest.replica_id, address=longest.kv_address, num_tokens=num_tokens), saved)


def can_fetch(target: ReplicaStatus, source: ReplicaStatus) -> bool:
    """Return whether a replica takes blocks of another: of the same layout, over a way that leads there."""
    if source.replica_id == target.replica_id or not target.kv_layout or target.kv_layout != source.kv_layout:
        return False
    kind, _, rest = source.kv_address.partition(":")
    if kind != "unix":
        return bool(rest)
    return target.kv_address.startswith(f"unix:{rest.partition(':')[0]}:")  # on the same host


def saved_tokens(target: ReplicaStatus, num_tokens: int, share: float) -> float | None:
    """Return how many tokens' computing a fetch of `num_tokens` saves.

    None if it is predicted to take more than `share` of the time of computing them.
    """
    if num_tokens < MIN_BLOCKS * target.block_size or share <= 0:
        return None
    if target.prefill_token_ms <= 0:
        return num_tokens / 2
    compute_s = num_tokens * target.prefill_token_ms / 1e3
    rate = target.fetch_bytes_per_s or FIRST_BYTES_PER_S
    fetch_s = FIXED_S + num_tokens * target.kv_bytes_per_token / rate
    return num_tokens * (1 - fetch_s / compute_s) if fetch_s <= share * compute_s else None

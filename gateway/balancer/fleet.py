"""The replicas of one model as the balancer knows them: last heartbeat, and what was placed there since.

A heartbeat is up to half a second old; a burst of requests in that time would all go to the same idle replica. So each
placement counts as load at once, until a heartbeat that must know of it has come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.balancer.policy import Candidate, Policy, choose, fits, home_of
from gateway.balancer.sources import best_offer, can_fetch, saved_tokens
from wire.errors import ContextLengthExceededError
from wire.heartbeats import Heartbeats
from wire.messages import ReplicaStatus

PREFILL = "prefill"  # the role of replicas that only compute prompts, as long as there are others

# A heartbeat that arrives so long after a placement was sent by a replica that had the placement in its queue.
_SETTLE_S = 0.1


@dataclass(slots=True)
class _Replica:
    status: ReplicaStatus
    placed: list[tuple[float, int]] = field(default_factory=list)  # (when, prefill tokens), newest last


class Fleet:
    """What is known of a model's replicas. All times are this process's own clock.

    `fetch_share`: see `gateway.balancer.sources.saved_tokens`.
    """

    def __init__(self, policy: Policy, fetch_share: float = 0.5) -> None:
        self._policy = policy
        self._fetch_share = fetch_share
        self._heartbeats = Heartbeats()
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0
        self.left_at = -math.inf  # when one was last found to drain, to have gone, or to be lost

    def hear(self, status: ReplicaStatus, now: float) -> None:
        """Take a heartbeat. A replica that says `gone` is forgotten."""
        if status.state == "draining":
            self.left_at = now
        if not self._heartbeats.hear(status, now):
            self._replicas.pop(status.replica_id, None)
            return
        known = self._replicas.get(status.replica_id)
        if known is None:
            self._replicas[status.replica_id] = _Replica(status)
            return
        known.status = status
        known.placed = [(at, tokens) for at, tokens in known.placed if now < at + _SETTLE_S]

    def lost(self, now: float) -> list[str]:
        """Forget and return the replicas that missed three heartbeats in a row."""
        silent = self._heartbeats.lost(now)
        for replica_id in silent:
            del self._replicas[replica_id]
        return silent

    def grant_grace(self, pause_s: float) -> None:
        """Count `pause_s` as not passed: this process was stopped or cut off itself and could hear nobody."""
        self._heartbeats.grant_grace(pause_s)

    def knows(self, replica_id: str) -> bool:
        """Return whether the replica lives, as far as is known."""
        return replica_id in self._replicas

    @property
    def is_loading(self) -> bool:
        """Whether a replica is on its way to be ready."""
        return any(replica.status.state == "loading" for replica in self._replicas.values())

    def place(
        self,
        num_tokens: int,
        cached: Mapping[str, int],
        now: float,
        *,
        longest: int | None = None,
        affinity: str = "",
        adapter: str = "",
    ) -> Candidate | None:
        """Choose a replica and count the request as its load; None if no replica (with the adapter) is ready.

        `longest` is the length of what must fit at once if that is less than the whole (inputs of an embedding).
        Raises ContextLengthExceededError when the prompt can never fit any replica there is.
        """
        ready = self._ready(adapter)
        ready = [replica for replica in ready if replica.status.role != PREFILL] or ready
        alone = num_tokens if longest is None else longest
        fitting = [replica for replica in ready if _fits(alone, replica.status)]
        if not fitting:
            if ready and not self.is_loading:
                raise _too_long(alone, ready)
            return None
        return self._choose(fitting, num_tokens, cached, now, affinity)

    def place_prefill(
        self, num_tokens: int, cached: Mapping[str, int], now: float, *, affinity: str = "", adapter: str = ""
    ) -> Candidate | None:
        """Choose a prefill replica for a prompt; None if whoever answers had better compute it alone.

        That is so without replicas of both kinds, and where fetching what is new would not pay.
        """
        ready = self._ready(adapter)
        takers = [replica.status for replica in ready if replica.status.role != PREFILL]
        if not takers:
            return None
        best = max(takers, key=lambda status: cached.get(status.replica_id, 0))
        if saved_tokens(best, num_tokens - cached.get(best.replica_id, 0), self._fetch_share) is None:
            return None
        fitting = [
            replica
            for replica in ready
            if replica.status.role == PREFILL
            and _fits(num_tokens, replica.status)
            and any(can_fetch(taker, replica.status) for taker in takers)
        ]
        return self._choose(fitting, num_tokens, cached, now, affinity) if fitting else None

    def _ready(self, adapter: str) -> list[_Replica]:
        ready = (replica for replica in self._replicas.values() if replica.status.state == "ready")
        return [replica for replica in ready if not adapter or adapter in replica.status.adapters]

    def _choose(
        self, fitting: list[_Replica], num_tokens: int, cached: Mapping[str, int], now: float, affinity: str
    ) -> Candidate:
        home = home_of(affinity, (replica.status.replica_id for replica in fitting))
        holders = [replica.status for replica in self._replicas.values() if replica.status.replica_id in cached]
        candidates = [self._candidate(replica, cached, holders, home) for replica in fitting]
        self._turn += 1
        chosen = choose(self._policy, candidates, num_tokens, self._turn)
        placed = self._replicas[chosen.replica_id].placed
        placed.append((now, max(0, num_tokens - chosen.cached_tokens - int(chosen.saved_tokens))))
        return chosen

    def _candidate(
        self, replica: _Replica, cached: Mapping[str, int], holders: list[ReplicaStatus], home: str | None
    ) -> Candidate:
        status = replica.status
        offer = best_offer(status, holders, cached, self._fetch_share) if holders else None
        placed_tokens = sum(tokens for _, tokens in replica.placed)
        return Candidate(
            replica_id=status.replica_id,
            cached_tokens=cached.get(status.replica_id, 0),
            waiting_tokens=status.num_waiting_tokens + placed_tokens,
            num_running=status.num_running,
            num_waiting=status.num_waiting + len(replica.placed),
            max_num_seqs=status.max_num_seqs,
            free_tokens=max(0, status.num_free_blocks * status.block_size - placed_tokens),
            is_home=status.replica_id == home,
            saved_tokens=offer.saved_tokens if offer is not None else 0.0,
            source=offer.source if offer is not None else None,
        )


def _fits(num_tokens: int, status: ReplicaStatus) -> bool:
    return fits(
        num_tokens, max_model_len=status.max_model_len, num_blocks=status.num_blocks, block_size=status.block_size
    )


def _too_long(num_tokens: int, ready: list[_Replica]) -> ContextLengthExceededError:
    room = max(min(r.status.max_model_len - 1, r.status.num_blocks * r.status.block_size) for r in ready)
    return ContextLengthExceededError(
        f"The prompt has {num_tokens} tokens; at most {max(room, 0)} fit the model's context and cache here.",
        param="messages",
    )

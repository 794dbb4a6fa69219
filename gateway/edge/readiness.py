"""What the edge knows of replicas, from their heartbeats: enough to say whether a model can be served now."""

from __future__ import annotations

from time import monotonic

from wire.messages import ReplicaStatus

_MISSED = 4  # heartbeats after which a replica counts as lost
_SLACK_S = 1.0
_HALF_S = 120.0  # what was seen so long ago counts half: prompts come in bursts, between them answers hold all seats
_FEW_TOKENS = 2_000  # until so many were computed while others waited, their time says little of a rate


class _Pace:
    """How fast a replica works off its queue: prompt tokens and seconds, of the time in which there was one."""

    __slots__ = ("seconds", "tokens")

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        kept = 0.5 ** (seconds / _HALF_S)
        self.tokens, self.seconds = kept * self.tokens + tokens, kept * self.seconds + seconds

    def wait_s(self, num_tokens: int) -> float:
        return num_tokens * self.seconds / (self.tokens + _FEW_TOKENS)


class Replicas:
    """The newest heartbeat of each replica, by model."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self._seen: dict[str, dict[str, tuple[ReplicaStatus, float]]] = {model: {} for model in models}
        self._paces: dict[str, _Pace] = {}

    def note(self, status: ReplicaStatus) -> None:
        """Take a heartbeat in; a replica that says it is gone is forgotten."""
        replicas = self._seen.setdefault(status.model, {})
        if status.state == "gone":
            replicas.pop(status.replica_id, None)
            self._paces.pop(status.replica_id, None)
        else:
            if status.replica_id in replicas:
                self._measure(replicas[status.replica_id][0], status)
            replicas[status.replica_id] = (status, monotonic())

    def num_ready(self, model: str) -> int:
        """Return how many replicas of a model are ready and alive; the dead are forgotten."""
        replicas = self._seen.get(model, {})
        now = monotonic()
        dead = [replica_id for replica_id, (status, at) in replicas.items() if now - at > _patience_s(status)]
        for replica_id in dead:
            del replicas[replica_id]
            self._paces.pop(replica_id, None)
        return sum(status.state == "ready" for status, _ in replicas.values())

    def _measure(self, before: ReplicaStatus, now: ReplicaStatus) -> None:
        """Learn how fast a replica works its queue off: only while there is one does it show what it can do.

        What would be a silence for dead is its clock that was set, and measures nothing.
        """
        seconds = now.sent_at - before.sent_at
        if not 0 < seconds <= _patience_s(now) or not before.num_waiting_tokens or not now.num_waiting_tokens:
            return
        pace = self._paces.setdefault(now.replica_id, _Pace())
        pace.add(max(0, now.num_prefilled_tokens - before.num_prefilled_tokens), seconds)

    def wait_s(self, model: str) -> float:
        """Predict how long a request of no length would wait for its first token; 0 where nothing is known yet."""
        self.num_ready(model)
        ready = [status for status, _ in self._seen.get(model, {}).values() if status.state == "ready"]
        paces = self._paces
        waits = [paces[s.replica_id].wait_s(s.num_waiting_tokens) if s.replica_id in paces else 0.0 for s in ready]
        return min(waits, default=0.0)

    def alive(self) -> list[ReplicaStatus]:
        """Return the newest heartbeat of each replica that is alive."""
        for model in self._seen:
            self.num_ready(model)
        return [status for replicas in self._seen.values() for status, _ in replicas.values()]

    def missing(self) -> list[str]:
        """Return a sentence for each model that has no ready replica."""
        return [f"no ready replica of {model}" for model in self._seen if not self.num_ready(model)]


def _patience_s(status: ReplicaStatus) -> float:
    return _MISSED * status.interval_s + _SLACK_S

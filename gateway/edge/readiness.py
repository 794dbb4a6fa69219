"""What the edge knows of replicas, from their heartbeats: enough to say whether a model can be served now."""

from __future__ import annotations

from time import monotonic

from wire.messages import ReplicaStatus

_MISSED = 4  # heartbeats after which a replica counts as lost
_SLACK_S = 1.0


class Replicas:
    """The newest heartbeat of each replica, by model."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self._seen: dict[str, dict[str, tuple[ReplicaStatus, float]]] = {model: {} for model in models}

    def note(self, status: ReplicaStatus) -> None:
        """Take a heartbeat in; a replica that says it is gone is forgotten."""
        replicas = self._seen.setdefault(status.model, {})
        if status.state == "gone":
            replicas.pop(status.replica_id, None)
        else:
            replicas[status.replica_id] = (status, monotonic())

    def num_ready(self, model: str) -> int:
        """Return how many replicas of a model are ready and alive; the dead are forgotten."""
        replicas = self._seen.get(model, {})
        now = monotonic()
        dead = [
            replica_id
            for replica_id, (status, at) in replicas.items()
            if now - at > _MISSED * status.interval_s + _SLACK_S
        ]
        for replica_id in dead:
            del replicas[replica_id]
        return sum(status.state == "ready" for status, _ in replicas.values())

    def alive(self) -> list[ReplicaStatus]:
        """Return the newest heartbeat of each replica that is alive."""
        for model in self._seen:
            self.num_ready(model)
        return [status for replicas in self._seen.values() for status, _ in replicas.values()]

    def missing(self) -> list[str]:
        """Return a sentence for each model that has no ready replica."""
        return [f"no ready replica of {model}" for model in self._seen if not self.num_ready(model)]

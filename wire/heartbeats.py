"""Which replicas are alive: one that misses three heartbeats in a row, or says `gone`, is lost, cache and all."""

from __future__ import annotations

from wire.messages import ReplicaStatus

MISSED_HEARTBEATS = 3


class Heartbeats:
    """When each replica is due to be given up, on the reader's own clock (no two machines' clocks are compared).

    Whoever only shows who lives may be more patient (`missed` heartbeats and `slack_s`) than who moves their work.
    """

    def __init__(self, *, missed: int = MISSED_HEARTBEATS, slack_s: float = 0.0) -> None:
        self._missed = missed
        self._slack_s = slack_s
        self._lost_at: dict[str, float] = {}

    def patience_s(self, status: ReplicaStatus) -> float:
        """Return how long a replica may be silent."""
        return self._missed * status.interval_s + self._slack_s

    def hear(self, status: ReplicaStatus, now: float) -> bool:
        """Take a heartbeat; return whether the replica lives on."""
        if status.state == "gone":
            self._lost_at.pop(status.replica_id, None)
            return False
        self._lost_at[status.replica_id] = now + self.patience_s(status)
        return True

    def expect(self, replica_id: str, until: float) -> None:
        """Give a replica up at a time unless it is heard before; one that was heard keeps its own."""
        self._lost_at.setdefault(replica_id, until)

    def lost(self, now: float) -> list[str]:
        """Return the replicas that fell silent, each once."""
        silent = [replica_id for replica_id, at in self._lost_at.items() if now > at]
        for replica_id in silent:
            del self._lost_at[replica_id]
        return silent

    def grant_grace(self, pause_s: float) -> None:
        """Push all due times back: this process was stopped or cut off itself and could hear nobody."""
        self._lost_at = {replica_id: at + pause_s for replica_id, at in self._lost_at.items()}

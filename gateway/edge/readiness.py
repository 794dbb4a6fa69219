"""What the edge knows of replicas, from their heartbeats: enough to say whether a model can be served now."""

from __future__ import annotations

from time import monotonic

import anyio

from wire.heartbeats import Heartbeats
from wire.messages import ReplicaStatus

_MISSED, _SLACK_S = 4, 1.0  # heartbeats, and a second more: an edge only shows who lives, and may be busy itself
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
    """The newest heartbeat of each replica of these models that is alive."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self.models = models
        self._heartbeats = Heartbeats(missed=_MISSED, slack_s=_SLACK_S)
        self._statuses: dict[str, ReplicaStatus] = {}
        self._paces: dict[str, _Pace] = {}
        self._news: anyio.Event | None = None

    def news(self) -> anyio.Event:
        """Return what the next heartbeat sets."""
        self._news = self._news or anyio.Event()
        return self._news

    def note(self, status: ReplicaStatus) -> None:
        """Take a heartbeat in; a replica that says it is gone is forgotten."""
        if self._news is not None:
            self._news.set()
            self._news = None
        if not self._heartbeats.hear(status, monotonic()):
            self._forget(status.replica_id)
            return
        if status.replica_id in self._statuses:
            self._measure(self._statuses[status.replica_id], status)
        self._statuses[status.replica_id] = status

    def alive(self) -> list[ReplicaStatus]:
        """Return the newest heartbeat of each replica that is alive; the dead are forgotten."""
        for replica_id in self._heartbeats.lost(monotonic()):
            self._forget(replica_id)
        return list(self._statuses.values())

    def num_ready(self, model: str) -> int:
        """Return how many replicas of a model are ready and alive."""
        return len(self.ready(model))

    def missing(self) -> list[str]:
        """Return a sentence for each model that has no ready replica."""
        return [f"no ready replica of {model}" for model in self.models if not self.ready(model)]

    def wait_s(self, model: str) -> float:
        """Predict how long a request of no length would wait for its first token; 0 where nothing is known yet."""
        paces = self._paces
        waits = (
            paces[one.replica_id].wait_s(one.num_waiting_tokens) if one.replica_id in paces else 0.0
            for one in self.ready(model)
        )
        return min(waits, default=0.0)

    def ready(self, model: str) -> list[ReplicaStatus]:
        """Return the newest heartbeats of a model's replicas that are ready and alive."""
        return [status for status in self.alive() if status.model == model and status.state == "ready"]

    def _forget(self, replica_id: str) -> None:
        self._statuses.pop(replica_id, None)
        self._paces.pop(replica_id, None)

    def _measure(self, before: ReplicaStatus, now: ReplicaStatus) -> None:
        """Learn how fast a replica works its queue off: only while there is one does it show what it can do.

        What would be a silence for dead is its clock that was set, and measures nothing.
        """
        seconds = now.sent_at - before.sent_at
        if not 0 < seconds <= self._heartbeats.patience_s(now):
            return
        if not before.num_waiting_tokens or not now.num_waiting_tokens:
            return
        pace = self._paces.setdefault(now.replica_id, _Pace())
        pace.add(max(0, now.num_prefilled_tokens - before.num_prefilled_tokens), seconds)

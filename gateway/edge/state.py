"""What /metrics reads at the moment it is asked: the edge's load, and the replicas as their heartbeats tell."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.edge.admission import Admission
from gateway.edge.inflight import InFlight
from gateway.edge.readiness import Replicas
from gateway.edge.replica_metrics import replica_metrics
from gateway.edge.room import Room


class State(Collector):
    """A collector without state of its own, so nothing it shows can be stale."""

    def __init__(
        self, models: tuple[str, ...], admission: Admission, inflight: InFlight, replicas: Replicas, room: Room
    ) -> None:
        self._models = models
        self._admission = admission
        self._inflight = inflight
        self._replicas = replicas
        self._room = room

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield GaugeMetricFamily("headrace_inflight_requests", "Requests in flight.", len(self._inflight))
        yield GaugeMetricFamily(
            "headrace_inflight_limit", "Requests that may be in flight.", self._admission.max_inflight
        )
        yield GaugeMetricFamily(
            "headrace_pending_tokens", "Tokens kept for slow clients.", self._inflight.num_pending_tokens
        )
        yield CounterMetricFamily(
            "headrace_admission_refused", "Requests refused at admission.", self._admission.refused
        )
        yield GaugeMetricFamily("headrace_connections", "Connections of clients.", len(self._room))
        yield GaugeMetricFamily("headrace_connections_limit", "Connections that there is room for.", self._room.limit)
        no_room = CounterMetricFamily(
            "headrace_connections_without_room", "Connections without room, by what was done.", labels=("outcome",)
        )
        no_room.add_metric(("idle_ended",), self._room.num_ended)
        no_room.add_metric(("refused",), self._room.num_refused)
        yield no_room
        ready = GaugeMetricFamily("headrace_replicas_ready", "Ready replicas.", labels=("model",))
        for model in self._models:
            ready.add_metric((model,), self._replicas.num_ready(model))
        yield ready
        yield from replica_metrics(self._replicas.alive())

"""What /metrics reads at the moment it is asked: the edge's load, and the replicas as their heartbeats tell."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.edge.admission import Admission
from gateway.edge.inflight import InFlight
from gateway.edge.readiness import Replicas
from gateway.edge.room import Room

_REPLICA = ("model", "replica")


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
        yield from self._replica_metrics()

    def _replica_metrics(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily(
            "headrace_replica_ready",
            "1 for a replica that takes work, 0 for one that does not.",
            labels=(*_REPLICA, "role"),
        )
        running = GaugeMetricFamily("headrace_replica_running", "Sequences running.", labels=_REPLICA)
        waiting = GaugeMetricFamily("headrace_replica_waiting", "Sequences waiting.", labels=_REPLICA)
        blocks = GaugeMetricFamily("headrace_replica_blocks", "KV blocks.", labels=_REPLICA)
        free = GaugeMetricFamily("headrace_replica_free_blocks", "KV blocks nobody uses.", labels=_REPLICA)
        waste = GaugeMetricFamily(
            "headrace_replica_kv_waste", "Share of held KV room without a token.", labels=_REPLICA
        )
        preempted = CounterMetricFamily(
            "headrace_replica_preemptions", "Sequences preempted.", labels=(*_REPLICA, "reason")
        )
        generated = CounterMetricFamily("headrace_replica_generated_tokens", "Tokens generated.", labels=_REPLICA)
        drafts = CounterMetricFamily("headrace_spec_decode_num_drafts", "Runs of guesses checked.", labels=_REPLICA)
        guessed = CounterMetricFamily("headrace_spec_decode_num_draft_tokens", "Tokens guessed.", labels=_REPLICA)
        accepted = CounterMetricFamily(
            "headrace_spec_decode_num_accepted_tokens", "Guesses that came true.", labels=_REPLICA
        )
        length = GaugeMetricFamily(
            "headrace_spec_decode_acceptance_length", "Tokens of a checked step, since the start.", labels=_REPLICA
        )
        fetched = CounterMetricFamily(
            "headrace_replica_fetched_blocks", "KV blocks that came from other replicas.", labels=_REPLICA
        )
        fetched_bytes = CounterMetricFamily("headrace_replica_fetched_bytes", "And their bytes.", labels=_REPLICA)
        failed = CounterMetricFamily(
            "headrace_replica_failed_fetches", "Fetches of KV blocks that were broken off.", labels=_REPLICA
        )
        given = CounterMetricFamily(
            "headrace_replica_given_blocks", "KV blocks that went to other replicas.", labels=_REPLICA
        )
        for status in self._replicas.alive():
            labels = (status.model, status.replica_id)
            ready.add_metric((*labels, status.role), status.state == "ready")
            running.add_metric(labels, status.num_running)
            waiting.add_metric(labels, status.num_waiting)
            blocks.add_metric(labels, status.num_blocks)
            free.add_metric(labels, status.num_free_blocks)
            waste.add_metric(labels, status.kv_waste)
            for reason, count in (status.preemptions or {"blocks": status.num_preemptions}).items():
                preempted.add_metric((*labels, reason), count)
            generated.add_metric(labels, status.num_generated_tokens)
            fetched.add_metric(labels, status.num_fetched_blocks)
            fetched_bytes.add_metric(labels, status.num_fetched_bytes)
            failed.add_metric(labels, status.num_failed_fetches)
            given.add_metric(labels, status.num_given_blocks)
            drafts.add_metric(labels, status.num_drafts)
            guessed.add_metric(labels, status.num_draft_tokens)
            accepted.add_metric(labels, status.num_accepted_tokens)
            length.add_metric(labels, 1 + status.num_accepted_tokens / max(1, status.num_drafts))
        yield from (
            ready,
            running,
            waiting,
            blocks,
            free,
            waste,
            preempted,
            generated,
            drafts,
            guessed,
            accepted,
            length,
        )
        yield from (fetched, fetched_bytes, failed, given)

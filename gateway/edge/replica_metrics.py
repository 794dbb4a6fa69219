"""What heartbeats say of replicas, as metrics: a row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wire.messages import ReplicaStatus

_LABELS = ("model", "replica")


class _Row(NamedTuple):
    """A metric. `said`: what a heartbeat says of it, by labels beyond model and replica (`names`), if there are any."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    text: str
    said: Callable[[ReplicaStatus], dict[tuple[str, ...], float]]
    names: tuple[str, ...] = ()

    def family(self, statuses: Iterable[ReplicaStatus]) -> Metric:
        family = self.kind(self.name, self.text, labels=(*_LABELS, *self.names))
        for status in statuses:
            for labels, value in self.said(status).items():
                family.add_metric((status.model, status.replica_id, *labels), value)
        return family


def _gauge(name: str, text: str, field: str) -> _Row:
    value = attrgetter(field)
    return _Row(GaugeMetricFamily, name, text, lambda status: {(): value(status)})


def _counter(name: str, text: str, field: str) -> _Row:
    value = attrgetter(field)
    return _Row(CounterMetricFamily, name, text, lambda status: {(): value(status)})


def _copied(name: str, text: str, field: str) -> _Row:
    value = attrgetter(field)
    return _Row(
        CounterMetricFamily,
        name,
        text,
        lambda status: {(): value(status) * status.block_size * status.kv_bytes_per_token},
    )


def _readiness(status: ReplicaStatus) -> dict[tuple[str, ...], float]:
    return {(status.role,): status.state == "ready"}


def _preemptions(status: ReplicaStatus) -> dict[tuple[str, ...], float]:
    counts = status.preemptions or {"blocks": status.num_preemptions}  # a replica that does not know reasons yet
    return {(reason,): count for reason, count in counts.items()}


def _acceptance_length(status: ReplicaStatus) -> dict[tuple[str, ...], float]:
    return {(): 1 + status.num_accepted_tokens / max(1, status.num_drafts)}


_ROWS = (
    _Row(
        GaugeMetricFamily,
        "headrace_replica_ready",
        "1 for a replica that takes work, 0 for one that does not.",
        _readiness,
        ("role",),
    ),
    _gauge("headrace_replica_running", "Sequences running.", "num_running"),
    _gauge("headrace_replica_waiting", "Sequences waiting.", "num_waiting"),
    _gauge("headrace_replica_blocks", "KV blocks.", "num_blocks"),
    _gauge("headrace_replica_free_blocks", "KV blocks nobody uses.", "num_free_blocks"),
    _gauge("headrace_replica_kv_waste", "Share of held KV room without a token.", "kv_waste"),
    _Row(CounterMetricFamily, "headrace_replica_preemptions", "Sequences preempted.", _preemptions, ("reason",)),
    _counter("headrace_replica_generated_tokens", "Tokens generated.", "num_generated_tokens"),
    _counter("headrace_spec_decode_num_drafts", "Runs of guesses checked.", "num_drafts"),
    _counter("headrace_spec_decode_num_draft_tokens", "Tokens guessed.", "num_draft_tokens"),
    _counter("headrace_spec_decode_num_accepted_tokens", "Guesses that came true.", "num_accepted_tokens"),
    _Row(
        GaugeMetricFamily,
        "headrace_spec_decode_acceptance_length",
        "Tokens of a checked step, since the start.",
        _acceptance_length,
    ),
    _counter("headrace_replica_fetched_blocks", "KV blocks that came from other replicas.", "num_fetched_blocks"),
    _counter("headrace_replica_fetched_bytes", "And their bytes.", "num_fetched_bytes"),
    _counter("headrace_replica_failed_fetches", "Fetches of KV blocks that were broken off.", "num_failed_fetches"),
    _counter("headrace_replica_given_blocks", "KV blocks that went to other replicas.", "num_given_blocks"),
    _gauge("headrace_replica_tier_blocks", "KV blocks that the second tier has room for.", "num_tier_blocks"),
    _gauge("headrace_replica_kept_blocks", "KV blocks in the second tier.", "num_kept_blocks"),
    _counter("headrace_replica_saved_blocks", "KV blocks that were copied to the second tier.", "num_saved_blocks"),
    _counter("headrace_replica_loaded_blocks", "KV blocks that came back from there.", "num_loaded_blocks"),
    _copied("headrace_replica_saved_bytes", "Bytes copied to the second tier.", "num_saved_blocks"),
    _copied("headrace_replica_loaded_bytes", "Bytes that came back from there.", "num_loaded_blocks"),
)


def replica_metrics(statuses: Iterable[ReplicaStatus]) -> Iterator[Metric]:
    """Yield a metric for each row, with a sample for each replica."""
    known = tuple(statuses)
    for row in _ROWS:
        yield row.family(known)

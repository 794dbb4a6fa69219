"""What /metrics says of replicas is what their heartbeats say."""

from __future__ import annotations

import pytest

from gateway.edge.admission import Admission
from gateway.edge.inflight import InFlight
from gateway.edge.readiness import Replicas
from gateway.edge.state import State
from wire.messages import ReplicaStatus


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"num_preemptions": 3, "preemptions": {"blocks": 1, "priority_seat": 2}}, {"blocks": 1, "priority_seat": 2}),
        ({"num_preemptions": 3}, {"blocks": 3}),  # a replica that does not know reasons yet
    ],
)
def test_preemptions_are_told_by_reason(told: dict[str, object], shown: dict[str, int]) -> None:
    replicas = Replicas(("m",))
    replicas.note(ReplicaStatus(replica_id="m-1", model="m", state="ready", sent_at=1.0, interval_s=60.0, **told))
    metrics = State(("m",), Admission(8), InFlight(100), replicas).collect()
    samples = [
        sample for metric in metrics if metric.name == "headrace_replica_preemptions" for sample in metric.samples
    ]
    assert {sample.labels["reason"]: sample.value for sample in samples} == shown
    assert all(sample.labels["replica"] == "m-1" for sample in samples)

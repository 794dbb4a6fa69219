"""What /metrics says of replicas is what their heartbeats say."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.edge.admission import Admission
from gateway.edge.inflight import InFlight
from gateway.edge.readiness import Replicas
from gateway.edge.room import Room
from gateway.edge.state import State
from wire.messages import ReplicaStatus


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"num_preemptions": 3, "preemptions": {"blocks": 1, "priority_seat": 2}}, {"blocks": 1, "priority_seat": 2}),
        ({"num_preemptions": 3}, {"blocks": 3}),  # a replica that does not know reasons yet
    ],
)
def test_preemptions_are_told_by_reason(told: dict[str, Any], shown: dict[str, int]) -> None:
    replicas = Replicas(("m",))
    replicas.note(ReplicaStatus(replica_id="m-1", model="m", state="ready", sent_at=1.0, interval_s=60.0, **told))
    metrics = State(("m",), Admission(8), InFlight(100), replicas, Room(8)).collect()
    samples = [
        sample for metric in metrics if metric.name == "headrace_replica_preemptions" for sample in metric.samples
    ]
    assert {sample.labels["reason"]: sample.value for sample in samples} == shown
    assert all(sample.labels["replica"] == "m-1" for sample in samples)


def test_replicas_are_told_by_role_and_whether_they_take_work() -> None:
    replicas = Replicas(("m",))
    for name, role, state in (("a", "decode", "ready"), ("b", "prefill", "ready"), ("c", "both", "draining")):
        replicas.note(ReplicaStatus(replica_id=name, model="m", state=state, sent_at=1.0, interval_s=60.0, role=role))
    metrics = State(("m",), Admission(8), InFlight(100), replicas, Room(8)).collect()
    [family] = [metric for metric in metrics if metric.name == "headrace_replica_ready"]
    shown = {(sample.labels["replica"], sample.labels["role"]): sample.value for sample in family.samples}
    assert shown == {("a", "decode"): 1, ("b", "prefill"): 1, ("c", "both"): 0}

"""The ring's fixtures, for the edge's tests, an encoder beside its model, spans, and deadlines that pass when told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.edge.inflight import InFlight
from tests.ring import make_ring, ring, tiny_model
from tests.tiny_bert import MODEL as EMBEDDER
from tests.tiny_bert import write_tiny_bert
from wire import telemetry

__all__ = ["make_ring", "pass_deadlines", "ring", "tiny_model"]


@pytest.fixture(scope="session")
def tiny_bert(tiny_model: Path) -> Path:
    """A directory with a tiny embedding model."""
    path = tiny_model.parent / EMBEDDER
    return path if path.exists() else write_tiny_bert(path)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What is traced in this process."""
    exporter = InMemorySpanExporter()
    telemetry.setup("ring", environ={}, exporter=exporter)
    yield exporter
    telemetry.shutdown()


@pytest.fixture
def pass_deadlines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the deadlines of all that is in flight pass; ask for it before the ring, whose edges it watches."""
    tables: list[InFlight] = []

    class Table(InFlight):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            tables.append(self)

    def pass_all() -> None:
        for table in tables:
            for flight in table._flights.values():
                flight.deadline = 0.0
            table._sooner.set()

    monkeypatch.setattr("gateway.edge.edge.InFlight", Table)
    return pass_all

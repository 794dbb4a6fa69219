"""The ring's fixtures, for the edge's tests, and deadlines that pass when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.edge.inflight import InFlight
from tests.ring import make_ring, ring, tiny_model

__all__ = ["make_ring", "pass_deadlines", "ring", "tiny_model"]


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

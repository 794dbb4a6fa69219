"""The audit log: no entry is lost while the bus stalls, few trips write many, and what must be audited first is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.edge.safety.audit import Audit
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from tests.gateway.edge.asks import ASK, CHAT, whole
from tests.ring import MakeRing, Ring
from wire import topics
from wire.bus import Bus
from wire.errors import UnavailableError
from wire.messages import SafetyEvent

RULE = '[[rule]]\nid = "{id}"\nkind = "terms"\nterms = ["{id}"]\naction = "{action}"\naudit = "{audit}"\n'
POLICY = RULE.format(id="zorg", action="flag", audit="first") + RULE.format(id="blat", action="flag", audit="after")


class Count:
    """Counts what rules did."""

    def note_safety(self, action: str) -> None:
        """Count nothing."""


class Stalling:
    """A bus whose next trips fail, stall or succeed as drawn; it keeps what was written."""

    def __init__(self, ways: list[str]) -> None:
        self.ways = ways
        self.written: list[SafetyEvent] = []
        self.num_trips = 0

    async def publish_many(self, stream: str, messages: Sequence[SafetyEvent], *, maxlen: int) -> None:
        """Take a trip."""
        assert stream == topics.safety_audit() and maxlen
        way = self.ways.pop(0) if self.ways else "fine"
        await anyio.lowlevel.checkpoint()
        if way == "fails":
            raise UnavailableError("the message bus does not answer")
        self.num_trips += 1
        self.written += messages


def hits(rule: str, count: int, first: int = 0) -> list[Hit]:
    return [Hit(rule, "flag", at, at + 1, "prompt") for at in range(first, first + count)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.sampled_from(["fails", "fine"]), max_size=8))
def test_every_entry_is_written_once_and_in_order_however_the_bus_stalls(counts: list[int], ways: list[str]) -> None:
    bus = Stalling(ways)
    policy = SafetyPolicy.parse(POLICY)

    async def run() -> None:
        audit = Audit(bus, Count())  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:
            await tasks.start(audit.run)
            at = 0
            for number, count in enumerate(counts):
                rule = "zorg" if number % 2 else "blat"
                written = len(bus.written) + audit.num_waiting
                try:
                    await audit.note_first(policy, hits(rule, count, at), tenant="", model="")
                    if rule == "zorg" and count:
                        assert len(bus.written) >= written + count  # admitted: so it is audited
                except UnavailableError:
                    assert rule == "zorg"
                at += count
            while audit.num_waiting:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.edge.safety.audit._AGAIN_S", 0)
        anyio.run(run)
    assert [event.start for event in bus.written] == list(range(sum(counts)))


@pytest.mark.anyio
async def test_many_entries_take_one_trip_and_the_oldest_go_when_more_wait_than_the_log_holds() -> None:
    bus = Stalling(["fails"])
    audit = Audit(bus, Count())  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.edge.safety.audit.MAXLEN", 300)
        for _ in range(4):
            audit.note(hits("blat", 200))
        assert audit.num_waiting == 300
        async with anyio.create_task_group() as tasks:
            await tasks.start(audit.run)
            tasks.cancel_scope.cancel()
    assert (audit.num_waiting, bus.num_trips) == (300, 0)  # it tried once more, and the bus did not answer
    async with anyio.create_task_group() as tasks:
        await tasks.start(audit.run)
        tasks.cancel_scope.cancel()
    assert (audit.num_waiting, bus.num_trips, len(bus.written)) == (0, 1, 300)


def saying(text: str) -> dict[str, Any]:
    return {**ASK, "messages": [{"role": "user", "content": text}]}


@pytest.fixture
async def ring(make_ring: MakeRing, tmp_path: Path) -> Any:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    async with make_ring(safety_policy=str(file)) as running:
        yield running


@pytest.mark.anyio
async def test_nothing_is_admitted_unaudited_when_its_rule_says_so(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    away, publish_many = True, Bus.publish_many

    async def stalls(self: Bus, stream: str, messages: Sequence[Any], *, maxlen: int) -> None:
        if away:
            raise UnavailableError("the message bus does not answer")
        await publish_many(self, stream, messages, maxlen=maxlen)

    monkeypatch.setattr(Bus, "publish_many", stalls)
    refused = await ring.http.post(CHAT, json=saying("zorg"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable"), refused.text
    assert refused.headers["retry-after"] and "zorg" not in refused.text
    assert ring.replica.requests == []
    assert (await ring.http.post(CHAT, json=saying("blat"))).status_code == 200  # its entry waits
    assert (await whole(ring))["choices"]
    away = False
    assert (await ring.http.post(CHAT, json=saying("zorg"))).status_code == 200
    found: list[SafetyEvent] = []
    with anyio.fail_after(60):
        async for message in ring.bus.watch(topics.safety_audit()):
            assert isinstance(message, SafetyEvent)
            found.append(message)
            if len(found) == 3:
                break
    assert [event.rule for event in found] == ["zorg", "blat", "zorg"]

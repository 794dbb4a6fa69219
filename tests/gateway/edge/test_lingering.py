"""Requests that their clients have left: a bus that is away, or a client that comes back just then, harms nobody."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.edge.places import parse_place
from gateway.edge.tenancy.accounts import Accounts
from tests.gateway.edge.asks import ASK, CHAT
from tests.gateway.edge.sse import read
from tests.gateway.edge.test_resume import BODY, TOLD, ask, ids, lose
from tests.ring import MakeRing, Ring
from tests.script import Piece, say
from wire import topics
from wire.bus import Bus
from wire.errors import UnavailableError
from wire.messages import EndReasoning, Resubscribe

pytestmark = pytest.mark.anyio


async def test_a_bus_that_is_away_when_nobody_comes_back_ends_the_work_later_and_never_the_edge(
    make_ring: MakeRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, num_asked = Bus.record, 0

    async def record(bus: Bus, partition: int, request_id: str, *names: str) -> dict[str, Any]:
        nonlocal num_asked
        if names == ("holder",):
            num_asked += 1
            if num_asked <= 3:
                raise UnavailableError("the message bus does not answer")
        return await real(bus, partition, request_id, *names)

    monkeypatch.setattr(Bus, "record", record)
    monkeypatch.setattr("gateway.edge.lingering._AGAIN_S", 0.0)
    async with make_ring(resume_wait_s=0.05) as ring:
        ring.replica.play(*say("one "), finish=None)
        await lose(ring, '"one "')
        await ring.replica.cancelled()
        await ring.until_idle()
        assert num_asked == 4


async def test_a_client_that_comes_back_while_its_end_is_decided_keeps_its_answer(
    make_ring: MakeRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, go = Bus.record, anyio.Event()
    is_deciding, is_back, has_decided = anyio.Event(), anyio.Event(), anyio.Event()

    async def record(bus: Bus, partition: int, request_id: str, *names: str) -> dict[str, Any]:
        if names != ("holder",):
            return await real(bus, partition, request_id, *names)
        is_deciding.set()
        await is_back.wait()
        has_decided.set()
        return await real(bus, partition, request_id, *names)

    monkeypatch.setattr(Bus, "record", record)
    async with make_ring(resume_wait_s=0.05) as ring:
        ring.replica.play(*TOLD[:5], *[Piece(piece.raw, after=go) for piece in TOLD[5:]])
        before = await lose(ring, '"one "')
        rest: list[str] = []

        async def come_back() -> None:
            rest.append(await ask(ring.http, ids(before)[-1]))

        async with anyio.create_task_group() as tasks:
            await is_deciding.wait()
            tasks.start_soon(come_back)
            await ring.replica.until(lambda: any(isinstance(one, Resubscribe) for one in ring.replica.control))
            is_back.set()
            await has_decided.wait()
            marker = EndReasoning(request_id="nobody's")  # a cancel would come before it
            await ring.bus.send(topics.control(ring.replica.replica_id), marker, maxlen=100)
            await ring.replica.until(lambda: marker in ring.replica.control)
            go.set()
    assert ring.replica.cancels == []
    assert read(before).text() + read(rest[0]).text() == "one two hello world"


async def test_a_client_that_comes_back_to_a_full_edge_is_waited_for_as_before(make_ring: MakeRing) -> None:
    async with make_ring(resume_wait_s=1.0, max_inflight=1) as ring:
        ring.replica.play(*say("one "), finish=None)
        before = await lose(ring, '"one "')

        async def fill() -> None:
            while (await ring.http.post(CHAT, json=ASK)).status_code == 429:  # the edge has not seen yet that it left
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            await ring.replica.until(lambda: len(ring.replica.requests) == 2)
            refused = await ring.http.post(CHAT, json=BODY, headers={"Last-Event-ID": ids(before)[-1]})
            assert refused.status_code == 429
            (cancelled,) = await ring.replica.cancelled()
            tasks.cancel_scope.cancel()
        assert cancelled.request_id == parse_place(ids(before)[-1]).request_id
        await ring.until_idle()


async def test_a_client_that_asks_for_another_place_than_it_had_has_not_come_back(make_ring: MakeRing) -> None:
    async with make_ring(resume_wait_s=1.0) as ring:
        ring.replica.play(*say("one "), finish=None)
        before = await lose(ring, '"one "')
        wrong = ids(before)[-1] + "_0-0-0-0-0"  # a choice more
        refused = await ring.http.post(CHAT, json=BODY, headers={"Last-Event-ID": wrong})
        assert refused.status_code == 404
        (cancelled,) = await ring.replica.cancelled()
        assert cancelled.request_id == parse_place(wrong).request_id
        await ring.until_idle()


async def test_a_fault_at_the_end_of_one_request_ends_no_other(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of ours")

    ring.replica.play(*say("hello"))
    with monkeypatch.context() as patch:
        patch.setattr(Accounts, "leave", fail)
        assert (await ring.http.post(CHAT, json=ASK)).status_code == 200
        await ring.until_idle()
    assert (await ring.http.post(CHAT, json=BODY)).status_code == 200

"""The places of a key that has `max_concurrent`: none is lost, whatever its request's client and edge do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.edge.edge import Edge
from gateway.edge.tenancy.accounts import Accounts
from gateway.edge.tenancy.caller import Caller, current
from gateway.edge.tenancy.key_file import ApiKey, hash_of
from gateway.edge.tenancy.keyring import Keyring
from gateway.edge.tenancy.limits import Limits
from tests.gateway.edge.asks import ASK, CHAT
from tests.gateway.edge.tenancy.conftest import KeyFile
from tests.ring import MakeRing
from wire.bus import Bus, BusOptions
from wire.errors import RateLimitError, UnavailableError
from wire.ledger import Entry
from wire.messages import Request

pytestmark = pytest.mark.anyio

REQUEST = Request(model="m", key_id="a")
KEY = ApiKey(id="a", tenant="a", hash=hash_of("a"), max_concurrent=5, requests_per_minute=1000)


@pytest.fixture
async def edges(
    bus: Bus, bus_url: str, bus_options: BusOptions, key_file: KeyFile
) -> AsyncIterator[tuple[Accounts, Accounts]]:
    key_file.write(a={"max_concurrent": KEY.max_concurrent, "requests_per_minute": KEY.requests_per_minute})
    async with Bus.open(bus_url, bus_options) as other:
        yield Accounts(bus, Keyring(key_file.path)), Accounts(other, Keyring(key_file.path))


async def enter(accounts: Accounts, request_id: str) -> None:
    token = current.set(Caller(KEY, accounts.limits))
    try:
        await accounts.enter(request_id, REQUEST, deadline=time.time() + 60)
    finally:
        current.reset(token)


async def num_taken(bus: Bus) -> int:
    taken: int = await bus.route.call("hr:{key:a}:open", "ZCARD", "hr:{key:a}:open")
    return taken


async def test_a_crowd_at_two_edges_never_has_more_places_than_there_are(
    bus: Bus, edges: tuple[Accounts, Accounts]
) -> None:
    inside, most, served = 0, 0, 0

    async def come(number: int) -> None:
        nonlocal inside, most, served
        accounts, request_id = edges[number % 2], f"r{number}"
        while True:
            try:
                await enter(accounts, request_id)
                break
            except RateLimitError:
                await anyio.sleep(0.001)
        inside += 1
        most = max(most, inside)
        await anyio.lowlevel.checkpoint()
        inside -= 1
        served += 1
        await accounts.release(request_id, REQUEST, used=0)

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(come, number)
    assert (served, await num_taken(bus)) == (60, 0)
    assert most <= 5


@pytest.mark.parametrize("lost", ["client", "reply"])
async def test_who_leaves_while_let_in_leaves_no_place_taken(
    bus: Bus, edges: tuple[Accounts, Accounts], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    entered = anyio.Event()
    ask: Callable[..., Awaitable[Any]] = Limits.enter

    async def ask_and_hear_nothing(self: Limits, *args: Any, **options: Any) -> None:
        await ask(self, *args, **options)
        entered.set()
        if lost == "reply":
            raise UnavailableError("no reply")
        await anyio.sleep_forever()

    monkeypatch.setattr(Limits, "enter", ask_and_hear_nothing)
    async with anyio.create_task_group() as tasks:

        async def come() -> None:
            try:
                await enter(edges[0], "r")
            except UnavailableError:
                return

        tasks.start_soon(come)
        await entered.wait()
        tasks.cancel_scope.cancel()
    assert await num_taken(bus) == 0


async def test_a_drain_waits_for_nobody_who_was_refused_at_the_door_meanwhile(
    make_ring: MakeRing, key_file: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_door, decided = anyio.Event(), anyio.Event()
    heard: list[bool] = []
    drain = Edge.drain

    async def drain_and_note(edge: Edge) -> None:
        heard.append(False)
        await drain(edge)
        heard[-1] = True

    async def enter(*_args: Any, **_options: Any) -> None:
        at_the_door.set()
        await decided.wait()
        raise RateLimitError("too many")

    monkeypatch.setattr(Edge, "drain", drain_and_note)
    monkeypatch.setattr(Accounts, "enter", enter)
    key_file.write(a={})
    async with make_ring(api_keys=str(key_file.path), drain_s=60.0) as ring, anyio.create_task_group() as tasks:

        async def come() -> None:
            answer = await ring.http.post(CHAT, json=ASK, headers={"authorization": "Bearer a"})
            assert answer.status_code == 429

        tasks.start_soon(come)
        await at_the_door.wait()
        ring.edge_scope.cancel()
        while (await ring.http.get("/health/ready")).status_code == 200:
            await anyio.lowlevel.checkpoint()
        decided.set()
        await ring.edge_stopped.wait()
    assert heard[0], "its time ran out"


async def test_the_place_of_a_request_whose_edge_died_is_free_when_its_replica_has_ended_it(
    bus: Bus, edges: tuple[Accounts, Accounts]
) -> None:
    dead, living = edges
    await enter(dead, "r")
    await dead.ledger.note(Entry(request_id="r", model="m", end="stop", key_id="a", completion_tokens=3, by="replica"))
    assert await num_taken(bus) == 1
    assert await living.ledger.sweep(0, settle=living.settle) == 1
    assert await num_taken(bus) == 0

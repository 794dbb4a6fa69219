"""The balancer over a real server. Replicas are played by their messages: heartbeats, and entries left unfinished."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from gateway.balancer.desk import BalancerDesk
from gateway.balancer.recovery import MAX_LOSSES, merged
from gateway.balancer.service import serve_streams
from gateway.balancer.settings import BalancerSettings
from gateway.balancer.token_reports import TokenReports
from tests.consume import watch_late
from wire import topics
from wire.bus import Bus
from wire.messages import (
    PROOF_TOKENS,
    Checkpoint,
    Failure,
    Holder,
    Job,
    Match,
    Matches,
    PhaseMark,
    Placement,
    Prompt,
    ReplicaStatus,
    ReportTokens,
    TokenReport,
    Trial,
    pack_ids,
    unpack_ids,
)

pytestmark = pytest.mark.anyio

MODEL = "m"
EDGE = topics.edge("e")
BEAT_S = 0.15
PATIENT_S = 3600.0  # said of the next beat by those that live: a busy machine that is late with one loses nobody
SOON_S = 0.05


class PlayedReplica:
    """Beats like a replica until it is killed; what is placed on it stays in its stream, as open work does."""

    def __init__(self, bus: Bus, replica_id: str, **status: Any) -> None:
        self.bus, self.replica_id = bus, replica_id
        roomy = {"num_blocks": 100, "num_free_blocks": 100, "max_model_len": 4096, "max_num_seqs": 8}
        self.status: dict[str, Any] = {**roomy, **status}
        self.state = "ready"
        self.interval_s = PATIENT_S
        self.life = anyio.CancelScope()

    async def live(self) -> None:
        with self.life:
            while True:
                await self.beat()
                await anyio.sleep(BEAT_S)

    async def die(self) -> None:
        """Fall silent behind a beat that has the next ones expected soon."""
        self.interval_s = SOON_S
        self.life.cancel()
        await self.beat()

    async def beat(self) -> None:
        status = ReplicaStatus(
            replica_id=self.replica_id,
            model=MODEL,
            state=self.state,
            sent_at=time.time(),
            interval_s=self.interval_s,
            **self.status,
        )
        await self.bus.publish(topics.status(MODEL), status, maxlen=10_000)

    async def work(self) -> list[Job]:
        return [job for _, job in await self.bus.open_work(0, self.replica_id)]


@asynccontextmanager
async def balancers(
    bus: Bus, number: int = 1, *, answer_s: float = 0.1, first_heartbeat_s: float = 60.0, **settings: float
) -> AsyncIterator[list[BalancerDesk]]:
    made = []
    chosen = BalancerSettings(models=(MODEL,), **{"balancer_wait_s": 60.0, **settings})  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            desk = BalancerDesk(bus, chosen, first_heartbeat_s=first_heartbeat_s, linger_s=0.0, answer_s=answer_s)
            await tasks.start(serve_streams, bus, chosen, desk)
            made.append(desk)
        yield made
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def replicas(bus: Bus, *names: str, **status: Any) -> AsyncIterator[list[PlayedReplica]]:
    async with anyio.create_task_group() as tasks:
        made = [PlayedReplica(bus, name, **status) for name in names]
        for replica in made:
            tasks.start_soon(replica.live)
        yield made
        tasks.cancel_scope.cancel()


async def submit(bus: Bus, request_id: str, num_tokens: int = 20, adapter: str = "", **cached: int) -> None:
    job = Job(request_id=request_id, partition=0, model=MODEL, edge=EDGE, deadline=time.time() + 60.0)
    prompt = Prompt(token_ids=pack_ids(range(num_tokens)), num_tokens=num_tokens, adapter=adapter)
    matches = Matches(replicas=tuple(Match(replica_id=r, num_tokens=n) for r, n in cached.items()))
    await bus.admit(job, {"prompt": prompt, "matches": matches}, to=topics.balancer(0, MODEL), ttl_s=60)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(60):
        while not await condition():
            await anyio.sleep(0.005)


async def met(desks: list[BalancerDesk], *fleet: PlayedReplica) -> None:
    async def all_know() -> bool:
        return all(desk.fleet(MODEL).knows(replica.replica_id) for desk in desks for replica in fleet)

    await until(all_know)


async def failure(bus: Bus) -> Failure:
    with anyio.fail_after(60):
        async for message in bus.inbox(EDGE):
            if isinstance(message, Failure):  # the balancer also asks for tokens
                return message
    raise AssertionError


async def test_a_job_goes_to_the_replica_with_the_longest_prefix_and_the_record_says_so(bus: Bus) -> None:
    async with replicas(bus, "a", "b", "c") as (a, b, c), balancers(bus) as desks:
        await met(desks, a, b, c)
        await submit(bus, "q", 100, b=80, c=16)
        await until(lambda: _has(b, 1))
        assert await a.work() == await c.work() == []
        assert (await bus.record(0, "q"))["placement"] == Placement(replica_id="b", attempt=0, cached_tokens=80)


async def test_a_beat_after_the_start_is_heard(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    may_look, replica = watch_late(monkeypatch), PlayedReplica(bus, "a")
    async with balancers(bus) as desks:
        await replica.beat()
        may_look.set()
        await met(desks, replica)


async def test_a_burst_between_two_heartbeats_is_spread_over_the_replicas(bus: Bus) -> None:
    fleet = [PlayedReplica(bus, name) for name in "abcd"]
    async with balancers(bus) as desks:
        for replica in fleet:
            await replica.beat()
        await met(desks, *fleet)
        for number in range(20):
            await submit(bus, f"q{number}", 500)
        await until(lambda: _all(*(_has(replica, 5) for replica in fleet)))


async def test_the_work_of_a_killed_replica_is_placed_elsewhere_exactly_once(bus: Bus) -> None:
    async with replicas(bus, "a", "b", "c") as (a, b, c), balancers(bus, 3) as desks:
        await met(desks, a, b, c)
        for number in range(30):
            await submit(bus, f"q{number}")
        await until(lambda: _sum_is(30, a, b, c))
        held = {job.request_id for job in await a.work()}
        assert held
        await a.die()
        await until(lambda: _has(a, 0))
        work = await b.work() + await c.work()
        assert sorted(job.request_id for job in work) == sorted(f"q{number}" for number in range(30))
        assert {job.request_id for job in work if job.attempt == 1} == held
        assert {job.attempt for job in work} == {0, 1}
        assert sum(desk.recovery.num_replaced for desk in desks) == len(held)
        for job in work:
            placement = (await bus.record(0, job.request_id))["placement"]
            assert placement.attempt == job.attempt
        # Nothing of the dead one is left, and it is off the record.
        await until(lambda: _is_forgotten(bus, "a"))


async def test_a_replica_that_says_gone_loses_its_work_at_once(bus: Bus) -> None:
    async with replicas(bus, "a") as (a,), balancers(bus):
        await submit(bus, "q")
        await until(lambda: _has(a, 1))
        a.state = "gone"
        await a.die()
        async with replicas(bus, "b") as (b,):
            await until(lambda: _has(b, 1))
        assert await a.work() == []


async def test_a_draining_replica_keeps_its_work_and_gets_no_more(bus: Bus) -> None:
    async with replicas(bus, "a") as (a,), balancers(bus) as desks:
        await submit(bus, "q0")
        await until(lambda: _has(a, 1))
        a.state = "draining"
        await a.beat()
        async with replicas(bus, "b") as (b,):
            await met(desks, b)
            for number in range(1, 6):
                await submit(bus, f"q{number}", a=16)
            await until(lambda: _has(b, 5))
        assert [job.request_id for job in await a.work()] == ["q0"]


async def test_work_placed_on_a_replica_after_its_loss_is_found_as_well(bus: Bus) -> None:
    async with replicas(bus, "a", "b") as (a, b), balancers(bus, first_heartbeat_s=0.5) as desks:
        await met(desks, a, b)
        await a.die()
        await until(lambda: _is_forgotten(bus, "a"))
        # Another balancer, one heartbeat behind, sends it one more and puts it on record.
        job = Job(request_id="late", partition=0, model=MODEL, edge=EDGE, deadline=time.time() + 60)
        prompt = Prompt(token_ids=b"", num_tokens=20)
        await bus.admit(job, {"prompt": prompt}, to=topics.replica(0, "a"), ttl_s=60)
        await bus.route.call("hr:replicas:m", "HSET", "hr:replicas:m", "a", "0")
        await until(lambda: _has(b, 1))


async def test_a_balancer_that_starts_finds_the_work_of_replicas_that_died_before(bus: Bus) -> None:
    async with replicas(bus, "a") as (a,), balancers(bus):
        await submit(bus, "q")
        await until(lambda: _has(a, 1))
    async with replicas(bus, "b") as (b,), balancers(bus, 2, first_heartbeat_s=0.5):
        await until(lambda: _has(b, 1))
        assert (await b.work())[0].attempt == 1


async def test_a_lost_job_past_its_deadline_ends_with_a_failure(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas(bus, "a", "b") as (a, b), balancers(bus) as desks:
        await met(desks, a, b)
        await submit(bus, "q", 20, a=16)
        await until(lambda: _has(a, 1))
        later = time.time() + 61.0
        monkeypatch.setattr("gateway.balancer.recovery.time", SimpleNamespace(time=lambda: later))
        await a.die()
        assert (await failure(bus)).code == "deadline_exceeded"
        await until(lambda: _has(a, 0))
        assert await b.work() == []


async def test_a_cancelled_job_is_not_placed_again(bus: Bus) -> None:
    async with replicas(bus, "a", "b") as (a, b), balancers(bus) as desks:
        await met(desks, a, b)
        await submit(bus, "q", 20, a=16)
        await until(lambda: _has(a, 1))
        await bus.cancel(0, "q")
        await a.die()
        assert (await failure(bus)).code == "request_cancelled"
        await until(lambda: _has(a, 0))
        assert await b.work() == []


@pytest.mark.parametrize(
    ("answer", "goes_on_with"),
    [
        (Checkpoint(attempt=0, token_ids={0: pack_ids([7, 8, 9, 10])}), [7, 8, 9, 10]),
        (Checkpoint(attempt=0), [7, 8, 9]),  # it has just taken the request over
        (None, [7, 8, 9]),  # it has nothing to do with the request any more
        ("silent", [7, 8, 9]),
    ],
)
async def test_a_moved_job_takes_along_what_its_edge_has(
    bus: Bus, answer: Checkpoint | str | None, goes_on_with: list[int]
) -> None:
    async def play_edge() -> None:
        async for message in bus.inbox(topics.edge("taker")):
            if isinstance(message, ReportTokens) and not isinstance(answer, str):
                report = TokenReport(request_id=message.request_id, checkpoint=answer)
                await bus.send(message.reply_to, report, maxlen=10)

    answer_s = 0.1 if answer == "silent" else 60.0
    async with (
        replicas(bus, "a", "b") as (a, b),
        balancers(bus, answer_s=answer_s) as desks,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(play_edge)
        await met(desks, a, b)
        await submit(bus, "q", 20, a=16)
        await until(lambda: _has(a, 1))
        kept = Checkpoint(attempt=0, token_ids={0: pack_ids([7, 8, 9])})
        holder = Holder(edge=topics.edge("taker"), deadline=time.time() + 60)
        await bus.update_record(0, "q", {"checkpoint": kept, "holder": holder})
        await a.die()
        await until(lambda: _has(b, 1))
        found = (await bus.record(0, "q", "checkpoint"))["checkpoint"]
        assert unpack_ids(found.token_ids.get(0, b"")) == goes_on_with
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("gains", [False, True])
async def test_what_gains_nothing_on_replicas_that_die_is_given_up_and_what_goes_on_is_not(
    bus: Bus, gains: bool
) -> None:
    fleet = [PlayedReplica(bus, f"r{number}") for number in range(MAX_LOSSES + 3)]
    async with anyio.create_task_group() as tasks, balancers(bus) as desks:
        tasks.start_soon(fleet[0].live)
        await met(desks, fleet[0])
        await submit(bus, "q")
        await until(lambda: _has(fleet[0], 1))
        for number, (held, following) in enumerate(pairwise(fleet), 1):
            tasks.start_soon(following.live)
            await met(desks, following)
            if gains:
                kept = Checkpoint(attempt=number, token_ids={0: pack_ids([7] * number * PROOF_TOKENS)})
                await bus.update_record(0, "q", {"checkpoint": kept})
            await bus.update_record(0, "q", {"trial": Trial(attempt=number - 1)})
            await held.die()
            if not gains and number == MAX_LOSSES:
                failed = await failure(bus)
                assert (failed.request_id, failed.code) == ("q", "dead_letter")
                assert await following.work() == []
                break
            await until(partial(_has, following, 1))
        tasks.cancel_scope.cancel()


async def test_what_only_waited_where_a_replica_died_lost_nothing(bus: Bus) -> None:
    before = Placement(replica_id="a", attempt=9, losses=MAX_LOSSES - 1)
    async with replicas(bus, "a", "b") as (a, b), balancers(bus) as desks:
        await met(desks, a, b)
        await submit(bus, "q", 20, a=16)
        await until(partial(_has, a, 1))
        await bus.update_record(0, "q", {"placement": before, "trial": Trial(attempt=8)})  # of another replica
        await a.die()
        await until(partial(_has, b, 1))
        assert (await bus.record(0, "q"))["placement"].losses == MAX_LOSSES - 1


async def test_replicas_that_leave_on_purpose_are_not_held_against_a_job(bus: Bus) -> None:
    before = Placement(replica_id="a", attempt=9, losses=MAX_LOSSES - 1)
    for how, code in (("gone", None), ("died", "dead_letter"), ("killed", "dead_letter")):
        async with replicas(bus, f"a {how}", f"b {how}") as (a, b), balancers(bus) as desks:
            await met(desks, a, b)
            await submit(bus, how, 20, "", **{a.replica_id: 16})
            await until(partial(_has, a, 1))
            await bus.update_record(0, how, {"placement": before, "trial": Trial(attempt=0)})
            if how != "killed":
                a.state, a.status["died"] = "gone", how == "died"
            await a.die()
            if code is None:
                await until(partial(_has, b, 1))
                assert (await bus.record(0, how))["placement"].losses == MAX_LOSSES - 1
            else:
                assert (await failure(bus)).code == code


def test_of_each_choice_the_longer_tokens_go_along_with_their_marks() -> None:
    mark = (PhaseMark(0, 0, 1),)
    shown = Checkpoint(attempt=1, token_ids={0: pack_ids([1, 2, 3]), 1: pack_ids([5])}, marks={0: mark}, ended=(1,))
    kept = Checkpoint(attempt=0, token_ids={0: pack_ids([1]), 1: pack_ids([5, 6]), 2: pack_ids([8])}, marks={2: mark})
    ids = {0: pack_ids([1, 2, 3]), 1: pack_ids([5, 6]), 2: pack_ids([8])}
    assert merged(shown, kept) == Checkpoint(attempt=1, token_ids=ids, marks={0: mark, 2: mark}, ended=(1,))


async def test_an_edge_that_was_silent_is_not_waited_for_again(bus: Bus) -> None:
    reports = TokenReports(bus, answer_s=0.05)
    assert await reports.ask(topics.edge("dead"), "q1") is None
    for number in range(200):
        assert await reports.ask(topics.edge("dead"), f"q{number}") is None
    asked = await bus.route.call(topics.edge("dead"), "XLEN", topics.edge("dead"))
    assert asked <= 1  # none, if the answer's time was over before the question was out


async def test_a_job_waits_for_a_replica_that_is_loading(bus: Bus) -> None:
    async with replicas(bus, "a") as (a,), balancers(bus, balancer_wait_s=0.0) as (desk,):
        a.state = "loading"
        await until(lambda: _is_loading(desk))
        await submit(bus, "q")
        await anyio.wait_all_tasks_blocked()
        assert await a.work() == []
        a.state = "ready"
        await until(lambda: _has(a, 1))


async def test_without_any_replica_a_job_ends_unavailable_after_a_bounded_wait(bus: Bus) -> None:
    async with balancers(bus, balancer_wait_s=0.05):
        await submit(bus, "q")
        ended = await failure(bus)
    assert (ended.request_id, ended.code, ended.desk) == ("q", "unavailable", "balancer")


async def test_a_request_of_an_adapter_waits_for_a_replica_that_has_it_however_idle_others_are(bus: Bus) -> None:
    async with replicas(bus, "plain") as (plain,), balancers(bus) as desks:
        await met(desks, plain)
        await submit(bus, "q", adapter="sql")
        await submit(bus, "other")
        await until(partial(_has, plain, 1))
        async with replicas(bus, "tuned", adapters=("sql",)) as (tuned,):
            await until(partial(_has, tuned, 1))
        assert [job.request_id for job in await plain.work()] == ["other"]


async def test_an_adapter_that_no_replica_has_is_named_where_its_request_ends(bus: Bus) -> None:
    async with replicas(bus, "plain") as (plain,), balancers(bus, balancer_wait_s=0.05) as desks:
        await met(desks, plain)
        await submit(bus, "q", adapter="sql")
        ended = await failure(bus)
    assert (ended.code, ended.message) == (
        "unavailable",
        "The model m with the adapter sql is not served by any replica now.",
    )


@pytest.mark.parametrize("end", ["lost", "draining", "gone"])
async def test_after_a_replica_left_all_requests_wait_for_the_one_that_takes_its_place(bus: Bus, end: str) -> None:
    async with replicas(bus, "a") as (a,), balancers(bus, balancer_wait_s=0.0) as desks:
        await met(desks, a)
        await submit(bus, "begun")
        await until(partial(_has, a, 1))
        if end == "lost":
            await a.die()
        else:
            a.state = end
        await until(lambda: _left(desks[0]))
        await submit(bus, "new")
        async with replicas(bus, "b") as (b,):
            await until(partial(_has, b, 1 if end == "draining" else 2))  # a draining one keeps what it has


async def test_a_replica_that_left_long_ago_is_not_waited_for(bus: Bus) -> None:
    async with replicas(bus, "a") as (a,), balancers(bus, balancer_wait_s=0.0, balancer_loading_wait_s=0.1) as desks:
        await met(desks, a)
        a.state = "gone"
        await until(lambda: _left(desks[0]))
        a.life.cancel()
        await submit(bus, "q")
        assert (await failure(bus)).code == "unavailable"


async def test_a_prompt_that_no_replica_could_ever_hold_is_refused_at_once(bus: Bus) -> None:
    async with replicas(bus, "a", num_blocks=4) as (a,), balancers(bus) as desks:
        await met(desks, a)
        await submit(bus, "big", 65)
        ended = await failure(bus)
        assert (ended.request_id, ended.code, ended.param) == ("big", "context_length_exceeded", "messages")
        for number in range(5):
            await submit(bus, f"q{number}", 64)
        await until(lambda: _has(a, 5))


async def _has(replica: PlayedReplica, number: int) -> bool:
    return len(await replica.work()) == number


async def _sum_is(number: int, *fleet: PlayedReplica) -> bool:
    return sum([len(await replica.work()) for replica in fleet]) == number


async def _all(*conditions: Awaitable[bool]) -> bool:
    return all([await condition for condition in conditions])


async def _knows(bus: Bus, replica_id: str) -> bool:
    return bool(await bus.route.call("hr:replicas:m", "HEXISTS", "hr:replicas:m", replica_id))


async def _is_forgotten(bus: Bus, replica_id: str) -> bool:
    return not await _knows(bus, replica_id)


async def _is_loading(desk: BalancerDesk) -> bool:
    return desk.fleet(MODEL).is_loading


async def _left(desk: BalancerDesk) -> bool:
    return math.isfinite(desk.fleet(MODEL).left_at)

"""The ring on a Redis Cluster of three real servers: partitions spread, hand-offs stay in one slot, slots may move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from redis.crc import key_slot

from tests.wire.conftest import cluster_nodes, fall_silent, port_of
from wire import topics
from wire.bus import Bus, BusOptions, HandOff
from wire.desk import serve_desk
from wire.errors import InternalError
from wire.messages import Cancel, Checkpoint, Failure, Job, Placement, Recalled, Request
from wire.step import Step

pytestmark = pytest.mark.anyio

OPTIONS = BusOptions(block_s=0.1, reply_timeout_s=30.0, patience_s=60.0, claim_idle_s=3600.0)
PARTITIONS = range(6)


@pytest.fixture
async def cluster(cluster_url: str) -> AsyncIterator[Bus]:
    async with Bus.open(cluster_url, OPTIONS) as bus:
        for server in bus.route.servers:
            await server.call("FLUSHALL")
        yield bus


@pytest.fixture
def nodes(cluster_url: str) -> Iterator[list[redis.Redis]]:
    with ExitStack() as stack:
        seed = stack.enter_context(redis.Redis.from_url(cluster_url))
        ports = sorted({row[2][1] for row in seed.execute_command("CLUSTER", "SLOTS")})
        yield [stack.enter_context(redis.Redis("127.0.0.1", port)) for port in ports]


async def test_the_cluster_is_found_by_asking_and_partitions_lie_on_all_its_servers(cluster: Bus) -> None:
    assert cluster.route.is_cluster
    owners = {id(cluster.route.owner(topics.history(partition))) for partition in PARTITIONS}
    assert len(owners) == 3


async def test_the_cluster_scheme_names_a_cluster_too(cluster_url: str) -> None:
    async with Bus.open(cluster_url.replace("redis://", "redis+cluster://"), OPTIONS) as bus:
        assert bus.route.is_cluster
        assert len(await bus.secret("x")) == 32


async def test_jobs_of_all_partitions_pass_a_desk_and_reach_the_next_with_their_records(
    cluster: Bus, make_job: Any
) -> None:
    async def handle(job: Job, record: dict[str, Any]) -> Step:
        assert record["request"].tenant == f"t{job.partition}"
        return Step(to=topics.tokenizer(job.partition, "m"), fields={"recalled": Recalled(version=job.partition)})

    async with anyio.create_task_group() as tasks:
        streams = [topics.history(partition) for partition in PARTITIONS]
        tasks.start_soon(_serve, cluster, streams, handle)
        for partition in PARTITIONS:
            request = Request(model="m", tenant=f"t{partition}")
            job = make_job(f"r{partition}", partition=partition)
            assert await cluster.admit(job, {"request": request}, to=topics.history(partition), ttl_s=60)
        for partition in PARTITIONS:
            with anyio.fail_after(60):
                stream = topics.tokenizer(partition, "m")
                [delivery] = await cluster.consumer(stream, group="g", name="one").read(1)
            assert delivery.message.request_id == f"r{partition}"  # type: ignore[union-attr]
            assert (await cluster.record(partition, f"r{partition}"))["recalled"].version == partition
        tasks.cancel_scope.cancel()


async def _serve(bus: Bus, streams: list[str], handle: Any) -> None:
    await serve_desk(bus, name="history", streams=streams, consumer="one", handle=handle)


async def test_a_claimed_job_is_handed_on_once(cluster: Bus, make_job: Any) -> None:
    job = make_job(partition=3)
    await cluster.admit(job, {}, to=topics.history(3), ttl_s=60)
    [slow] = await cluster.consumer(topics.history(3), group="g", name="slow").read(1)
    await fall_silent(cluster, topics.history(3), "g", "slow")
    [quick] = await cluster.consumer(topics.history(3), group="g", name="quick").read(1)
    outcomes = [await cluster.hand_off(held, job, to=topics.tokenizer(3, "m")) for held in (quick, slow)]
    assert outcomes == [HandOff.DONE, HandOff.LOST]


async def test_records_of_many_jobs_are_written_at_once_but_for_those_that_expired(cluster: Bus, make_job: Any) -> None:
    jobs = [make_job(request_id=f"r{number}", partition=number % 4) for number in range(8)]
    for job in jobs[:-1]:
        await cluster.admit(job, {}, to=topics.history(job.partition), ttl_s=60)
    await cluster.update_records((job, {"checkpoint": Checkpoint(attempt=at)}) for at, job in enumerate(jobs))
    found = [await cluster.record(job.partition, job.request_id, "checkpoint") for job in jobs]
    assert found == [*({"checkpoint": Checkpoint(attempt=at)} for at in range(7)), {}]


async def test_failures_and_messages_cross_slots(cluster: Bus, make_job: Any) -> None:
    job = make_job(partition=1)
    await cluster.admit(job, {}, to=topics.history(1), ttl_s=60)
    [delivery] = await cluster.consumer(topics.history(1), group="g", name="one").read(1)
    await cluster.fail(delivery, InternalError("x"), desk="history")
    inboxes = [topics.edge(f"e{number}") for number in range(12)]
    assert await cluster.send_many([(inbox, Cancel(request_id="r", attempt=1)) for inbox in inboxes], maxlen=5) == []
    with anyio.fail_after(60):
        async with aclosing(cluster.inbox(job.edge)) as inbox:
            assert isinstance(await anext(inbox), Failure)
        for name in inboxes:
            async with aclosing(cluster.inbox(name)) as inbox:
                assert isinstance(await anext(inbox), Cancel)


async def test_a_dead_replica_s_work_is_placed_again(cluster: Bus, make_job: Any) -> None:
    old, new = topics.replica(2, "a"), topics.replica(2, "b")
    await cluster.admit(make_job(partition=2), {}, to=old, ttl_s=60)
    await cluster.consumer(old, group="replica", name="a").read(1)
    [(entry_id, job)] = await cluster.open_work(2, "a")
    moved = {"placement": Placement(replica_id="b", attempt=1)}
    assert await cluster.re_place(2, "a", entry_id, job, to=new, fields=moved)
    assert await cluster.forget_replica(2, "a")
    assert await cluster.cancel(2, "r1") == moved["placement"]


async def test_a_slot_that_moves_to_another_server_is_followed(
    cluster: Bus, nodes: list[redis.Redis], make_job: Any
) -> None:
    history, tokenizer = topics.history(0), topics.tokenizer(0, "m")
    slot = key_slot(history.encode())
    await cluster.admit(make_job(), {"request": Request(model="m")}, to=history, ttl_s=60)
    [delivery] = await cluster.consumer(history, group="g", name="one").read(1)
    ids = {node: node.execute_command("CLUSTER MYID").decode() for node in nodes}
    [source] = [node for node in ids if node.execute_command("CLUSTER COUNTKEYSINSLOT", slot)]
    target = next(node for node in ids if node is not source)
    target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    keys = source.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
    port = target.connection_pool.connection_kwargs["port"]
    source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 60_000, "KEYS", *keys)
    assert await cluster.record(0, "r1", "request") == {"request": Request(model="m")}  # by ASK: the move is not over
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            # Keys that exist nowhere yet: the cluster says TRYAGAIN until the slot has its new owner.
            tasks.start_soon(lambda: cluster.admit(make_job("r2"), {}, to=history, ttl_s=60))
            await anyio.lowlevel.checkpoint()
            for node in (target, source):
                node.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    assert await cluster.hand_off(delivery, make_job(), to=tokenizer) is HandOff.DONE
    assert int(target.execute_command("CLUSTER COUNTKEYSINSLOT", slot)) >= 3


EDGE = topics.edge("e")
SLOT = key_slot(EDGE.encode())


async def test_a_server_that_left_the_cluster_is_left_with_all_lines_and_believed_no_more(tmp_path: Path) -> None:
    with cluster_nodes(tmp_path, (SLOT, SLOT), (0, SLOT - 1), (SLOT + 1, 16_383), None) as (old, second, third, new):
        url = f"redis://127.0.0.1:{port_of(old)}"
        async with Bus.open(url, OPTIONS) as bus, aclosing(bus.inbox(EDGE)) as inbox:
            courier = bus.courier()
            await courier.prepare(EDGE)
            await _passes(bus, inbox, "r1")
            assert _ports(bus) == {port_of(node) for node in (old, second, third)}
            assert _num_lines(old) == 3  # of the calls, the reader and the courier
            old.flushall()
            names = {node: node.execute_command("CLUSTER MYID") for node in (old, new, second)}
            for node in (new, old, second, third):
                node.execute_command("CLUSTER SETSLOT", SLOT, "NODE", names[new])
            await _passes(bus, inbox, "r2")
            await courier.prepare(EDGE)
            while _num_lines(old):
                await anyio.lowlevel.checkpoint()
            for node in (new, second, third):
                node.execute_command("CLUSTER FORGET", names[old])
            old.execute_command("CLUSTER RESET")
            new.flushall()
            for node in (second, new, third):
                node.execute_command("CLUSTER SETSLOT", SLOT, "NODE", names[second])
            [seed, *_] = bus.route.servers
            await bus.route.learn_again(seed)
            assert _ports(bus) == {port_of(node) for node in (second, third)}
            await _passes(bus, inbox, "r3")
            courier.close()


async def test_a_server_that_another_took_the_place_of_is_left(tmp_path: Path) -> None:
    with cluster_nodes(tmp_path, (SLOT, SLOT), (0, SLOT - 1), (SLOT + 1, 16_383), None) as (old, second, third, new):
        url = f"redis://127.0.0.1:{port_of(old)}"
        async with Bus.open(url, OPTIONS) as bus, aclosing(bus.inbox(EDGE)) as inbox:
            await _passes(bus, inbox, "r1")
            new.execute_command("CLUSTER REPLICATE", old.execute_command("CLUSTER MYID"))
            while new.info("replication")["master_link_status"] != "up":
                await anyio.lowlevel.checkpoint()
            old.shutdown(nosave=True, now=True)
            new.execute_command("CLUSTER FAILOVER TAKEOVER")
            await _passes(bus, inbox, "r2")
            assert _ports(bus) == {port_of(node) for node in (new, second, third)}


async def _passes(bus: Bus, inbox: AsyncIterator[Any], request_id: str) -> None:
    sent = Cancel(request_id=request_id, attempt=0)
    await bus.send(EDGE, sent, maxlen=9)
    assert await anext(inbox) == sent


def _ports(bus: Bus) -> set[int]:
    return {port for _, port in bus.route._servers}


def _num_lines(node: redis.Redis) -> int:
    return len(node.client_list()) - 1  # the one that asks

"""The prefix desk over a real server: jobs in, matches out; replicas are played by their messages alone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import pytest

from cache_svc.prefix.desk import PrefixDesk
from cache_svc.prefix.service import serve_streams
from cache_svc.prefix.settings import PrefixSettings
from tests.consume import consume, watch_late
from wire import topics
from wire.block_hash import chain, root
from wire.bus import Bus
from wire.messages import (
    AnyMessage,
    BlocksEvicted,
    BlocksStored,
    Job,
    Match,
    Matches,
    Prompt,
    ReplicaStatus,
    ReportBlocks,
    pack_ids,
)

pytestmark = pytest.mark.anyio

MODEL = "m"
SETTINGS = PrefixSettings(models=(MODEL,))
TOKEN_IDS = list(range(100))
NAMES = chain(root(b"secret", model=MODEL, block_size=16), TOKEN_IDS, 16)


def prompt_of(num_tokens: int) -> Prompt:
    return Prompt(
        token_ids=pack_ids(TOKEN_IDS[:num_tokens]),
        num_tokens=num_tokens,
        block_hashes=b"".join(NAMES[: num_tokens // 16]),
    )


@pytest.fixture
async def desk(bus: Bus) -> AsyncIterator[PrefixDesk]:
    made = PrefixDesk(bus, SETTINGS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_streams, bus, SETTINGS, made)
        yield made
        tasks.cancel_scope.cancel()


class PlayedReplica:
    """Sends what a replica sends and reads its control stream."""

    def __init__(self, bus: Bus, replica_id: str) -> None:
        self.bus, self.replica_id = bus, replica_id

    async def stored(self, sequence: int, *names: bytes, reset: bool = False) -> None:
        await self._event(
            BlocksStored(replica_id=self.replica_id, sequence=sequence, hashes=b"".join(names), reset=reset)
        )

    async def evicted(self, sequence: int, *names: bytes) -> None:
        await self._event(BlocksEvicted(replica_id=self.replica_id, sequence=sequence, hashes=b"".join(names)))

    async def _event(self, event: AnyMessage) -> None:
        await self.bus.publish(topics.kv_events(MODEL), event, maxlen=10_000)

    async def heartbeat(self, state: str = "ready", interval_s: float = 60.0) -> None:
        status = ReplicaStatus(
            replica_id=self.replica_id, model=MODEL, state=state, sent_at=time.time(), interval_s=interval_s
        )
        await self.bus.publish(topics.status(MODEL), status, maxlen=10_000)

    async def asked(self) -> ReportBlocks:
        with anyio.fail_after(60):
            async for message in self.bus.inbox(topics.control(self.replica_id)):
                assert isinstance(message, ReportBlocks)
                return message
        raise AssertionError


async def until(desk: PrefixDesk, expected: dict[str, int]) -> None:
    with anyio.fail_after(60):
        while desk.index(MODEL).match(NAMES) != expected:
            await anyio.sleep(0.005)


@pytest.mark.parametrize(("num_tokens", "cached"), [(95, 80), (80, 64), (81, 80), (16, 0), (1, 0)])
async def test_a_job_leaves_with_the_longest_cached_prefix_and_a_token_to_compute(
    bus: Bus, desk: PrefixDesk, num_tokens: int, cached: int
) -> None:
    replica, other = PlayedReplica(bus, "r0"), PlayedReplica(bus, "r1")
    await replica.stored(1, *NAMES, reset=True)
    await other.stored(1, NAMES[0], NAMES[2], reset=True)
    await until(desk, {"r0": 6, "r1": 1})
    job = Job(request_id="q", partition=0, model=MODEL, edge=topics.edge("e"), deadline=time.time() + 60)
    await bus.admit(job, {"prompt": prompt_of(num_tokens)}, to=topics.prefix(0, MODEL), ttl_s=60)
    with anyio.fail_after(60):
        async for delivery in consume(bus, topics.balancer(0, MODEL), group="balancer", consumer="test"):
            assert isinstance(delivery.message, Job)
            assert "prefix.work" in delivery.message.timings_ms
            break
    matches = (await bus.record(0, "q", "matches"))["matches"]
    expected = [("r0", cached)] * (cached > 0) + [("r1", 16)] * (num_tokens > 16)
    assert matches == Matches(replicas=tuple(Match(replica_id=r, num_tokens=n) for r, n in expected))


async def test_what_is_stored_after_the_start_is_known(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    may_look, made = watch_late(monkeypatch), PrefixDesk(bus, SETTINGS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_streams, bus, SETTINGS, made)
        await PlayedReplica(bus, "r0").stored(1, *NAMES, reset=True)
        may_look.set()
        await until(made, {"r0": 6})
        tasks.cancel_scope.cancel()


async def test_an_unknown_replica_is_asked_at_its_first_heartbeat_and_a_gap_asks_again(
    bus: Bus, desk: PrefixDesk
) -> None:
    replica = PlayedReplica(bus, "r0")
    await replica.heartbeat()
    await replica.asked()
    await replica.stored(7, *NAMES[:4], reset=True)
    await until(desk, {"r0": 4})
    await replica.evicted(8, NAMES[3])
    await until(desk, {"r0": 3})
    await replica.stored(10, NAMES[3])
    await until(desk, {})
    await replica.asked()
    await replica.stored(10, *NAMES[:5], reset=True)
    await until(desk, {"r0": 5})


async def test_the_blocks_of_a_replica_that_fell_silent_or_said_goodbye_are_forgotten(
    bus: Bus, desk: PrefixDesk
) -> None:
    silent, gone, stays = (PlayedReplica(bus, name) for name in ("silent", "gone", "stays"))
    for replica in (silent, gone, stays):
        await replica.stored(1, *NAMES[:2], reset=True)
    await until(desk, {"silent": 2, "gone": 2, "stays": 2})
    await stays.heartbeat()
    await gone.heartbeat("gone")
    await silent.heartbeat(interval_s=0.01)
    await until(desk, {"stays": 2})


async def test_a_report_of_one_that_is_gone_already_does_not_stay(bus: Bus) -> None:
    """Heartbeats and reports come by two ways: the last word may be read before what was said before it."""
    desk = PrefixDesk(bus, SETTINGS, unheard_s=0.0)
    gone, stays = PlayedReplica(bus, "gone"), PlayedReplica(bus, "stays")
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_streams, bus, SETTINGS, desk)
        for replica, last_word in ((gone, "gone"), (stays, "ready")):
            await replica.heartbeat(last_word)
        await stays.asked()
        await gone.stored(1, *NAMES[:2], reset=True)
        await stays.stored(1, *NAMES[:2], reset=True)
        await until(desk, {"stays": 2})
        tasks.cancel_scope.cancel()

"""Blocks go from cache to cache over real sockets; whatever goes wrong costs the rest of the blocks, no more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from model_svc.disagg import address
from model_svc.disagg.errors import TransferError
from model_svc.disagg.fetcher import Fetched
from model_svc.disagg.orders import ReadBlocks, WriteBlocks
from model_svc.disagg.peer import MAX_HEADER_BYTES, Ask, Greeting, Part, Peer, sign_ask, signature
from model_svc.disagg.staging import NUM_SLOTS
from tests.model_svc.disagg.caches import BLOCK_BYTES, LAYOUT, NAMES, SECRET, Cache, serving

pytestmark = pytest.mark.anyio

ALL = b"".join(NAMES)


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1"], ids=["unix", "tcp", "tcp6"])
async def test_blocks_that_one_cache_holds_are_hit_in_the_other(tmp_path: Path, host: str) -> None:
    source, target = Cache(), Cache()
    source.hold(NAMES)
    async with serving(source, tmp_path, host=host) as place:
        fetched = await target.fetcher.fetch(place, ALL)
    assert (fetched.num_blocks, fetched.failure) == (40, "")
    assert target.held() == source.held() == list(range(1, 41))
    assert (source.server.num_blocks, target.fetcher.num_blocks, target.fetcher.num_failed) == (40, 40, 0)


async def test_of_a_chain_that_is_cached_in_part_the_beginning_comes(tmp_path: Path) -> None:
    source, target = Cache(), Cache()
    source.hold(NAMES[:7])
    source.hold(NAMES[8:20])
    async with serving(source, tmp_path) as place:
        fetched = await target.fetcher.fetch(place, ALL)
        nothing = await target.fetcher.fetch(place, NAMES[30])
    assert (fetched.num_blocks, fetched.failure) == (7, "")
    assert (nothing.num_blocks, nothing.failure) == (0, "")
    assert target.held() == [1, 2, 3, 4, 5, 6, 7]


async def test_what_is_evicted_while_it_is_fetched_is_left_out_and_nothing_else_takes_its_name(tmp_path: Path) -> None:
    source, target = Cache(num_blocks=40), Cache()
    source.hold(NAMES)

    async def evict(order: ReadBlocks | WriteBlocks) -> None:
        if len(source.orders) == 3:
            source.roster.pool.free(source.roster.pool.allocate(40 - 9))  # the end of the chain goes first
            source.content.blocks = [block if name < 9 else 99 for name, block in enumerate(source.content.blocks)]

    source.before = evict
    async with serving(source, tmp_path) as place:
        fetched = await target.fetcher.fetch(place, ALL)
    assert fetched.failure == ""
    assert target.held() == list(range(1, fetched.num_blocks + 1))
    assert 8 <= fetched.num_blocks < 40


async def test_a_full_cache_takes_what_finds_room(tmp_path: Path) -> None:
    source, target = Cache(), Cache(num_blocks=14)
    source.hold(NAMES)
    held = target.roster.pool.allocate(5)
    async with serving(source, tmp_path) as place:
        fetched = await target.fetcher.fetch(place, b"".join(NAMES[:20]))
    assert fetched.num_blocks >= 8
    assert target.roster.pool.num_free == 9
    target.roster.pool.free(held)
    target.roster.check_invariants()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "bfloat16"), ("heads_first", True), ("shapes", ((32, 512),)), ("weights", "x"), ("model", "n"),
        ("device", "cuda"),
    ],
)  # fmt: skip
async def test_another_layout_is_refused_by_the_name_of_what_differs(tmp_path: Path, field: str, value: object) -> None:
    source, target = Cache(), Cache(**{field: value})  # type: ignore[arg-type]
    source.hold(NAMES[:4])
    async with serving(source, tmp_path) as place:
        fetched = await target.fetcher.fetch(place, ALL)
    assert fetched.num_blocks == 0
    assert f"{field} is {getattr(LAYOUT, field)!r} here, not {value!r}" in fetched.failure
    assert not source.orders and not target.orders


async def test_a_replica_of_another_deployment_gets_nothing_and_is_believed_nothing(tmp_path: Path) -> None:
    source, target = Cache(), Cache(secret=b"other" * 7)
    source.hold(NAMES[:4])
    async with serving(source, tmp_path) as place:
        assert (await target.fetcher.fetch(place, ALL)).failure
    assert not source.orders and not target.held()

    async def impostor(peer: Peer) -> None:
        await peer.send(Greeting(nonce=b"n" * 16))
        await peer.receive(Ask)
        await peer.send(Part(num_blocks=1, signature=b"?" * 32), memoryview(bytes(BLOCK_BYTES)))

    victim = Cache()
    assert "deployment" in (await _fetch_from(impostor, victim, tmp_path)).failure
    assert not victim.held()


async def _fetch_from(play: Callable[[Peer], Awaitable[None]], target: Cache, folder: Path) -> Fetched:
    """Fetch from a server that is played."""
    listener, place = address.listen(str(folder), "played")
    with listener:
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await anyio.wait_readable(listener)
                with Peer(listener.accept()[0]) as peer:
                    await play(peer)

            tasks.start_soon(serve)
            fetched = await target.fetcher.fetch(place, ALL)
            tasks.cancel_scope.cancel()
    return fetched


async def _greeted(peer: Peer) -> bytes:
    """Play an honest server up to the first part; returns the signature."""
    greeting = Greeting(nonce=b"n" * 16)
    await peer.send(greeting)
    ask = await peer.receive(Ask)
    assert ask.signature == sign_ask(SECRET, greeting, ask)
    return signature(SECRET, "server", greeting.nonce, ask.nonce)


async def test_what_came_before_the_source_died_counts(tmp_path: Path) -> None:
    async def dies(peer: Peer) -> None:
        signed = await _greeted(peer)
        size = Cache().link.staging.blocks_per_slot
        await peer.send(Part(num_blocks=size, signature=signed), memoryview(bytes(size * BLOCK_BYTES)))
        await peer.send(Part(num_blocks=size, signature=signed), memoryview(bytes(BLOCK_BYTES // 3)))

    target = Cache()
    fetched = await _fetch_from(dies, target, tmp_path)
    assert "EOFError" in fetched.failure and fetched.num_blocks == len(target.held()) == 4
    assert target.fetcher.num_failed == 1
    for _ in range(NUM_SLOTS // 2):  # all slots are back
        await target.link.for_writing.take()


@pytest.mark.parametrize("num_blocks", [-1, 5, 1 << 40])
async def test_a_part_that_is_larger_than_what_was_asked_for_is_not_read(tmp_path: Path, num_blocks: int) -> None:
    async def lies(peer: Peer) -> None:
        await peer.send(Part(num_blocks=num_blocks, signature=await _greeted(peer)))
        await anyio.sleep_forever()

    target = Cache()
    assert "blocks come at once" in (await _fetch_from(lies, target, tmp_path)).failure
    assert not target.orders


async def test_a_source_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    target = Cache(patience_s=0.05)
    fetched = await _fetch_from(lambda _peer: anyio.sleep_forever(), target, tmp_path)
    assert (fetched.num_blocks, fetched.failure) == (0, "not within 0.05 s")


async def test_a_fetch_may_take_as_long_as_computing_would(tmp_path: Path) -> None:
    source, target = Cache(), Cache(patience_s=0.0)
    source.hold(NAMES)
    async with serving(source, tmp_path) as place:
        assert "not within 0 s" in (await target.fetcher.fetch(place, ALL)).failure
        assert (await target.fetcher.fetch(place, ALL, compute_s=60.0)).failure == ""


async def test_fetches_that_took_too_long_are_known_as_slow_and_those_from_nowhere_are_not(tmp_path: Path) -> None:
    target = Cache(patience_s=0.05)
    for _ in range(3):
        await target.fetcher.fetch("tcp:127.0.0.1:1", ALL)
    assert target.fetcher.bytes_per_s == 0
    for _ in range(3):
        await _fetch_from(lambda _peer: anyio.sleep_forever(), target, tmp_path)
    assert 0 < target.fetcher.bytes_per_s < 1000


async def test_the_engine_is_asked_for_more_than_it_has_given(tmp_path: Path) -> None:
    source, target = Cache(), Cache()
    source.hold(NAMES)
    ordered: list[int] = []  # how many orders had been given when the engine obeyed, between two steps
    obey = source.link._send
    kept: list[ReadBlocks | WriteBlocks] = []

    async def between_steps(order: ReadBlocks | WriteBlocks) -> None:
        kept.append(order)

    source.link._send = between_steps

    async def steps() -> None:
        while True:
            await anyio.wait_all_tasks_blocked()
            if kept:
                ordered.append(len(kept))
            for order in [kept.pop(0) for _ in range(len(kept))]:
                await obey(order)

    async with serving(source, tmp_path) as place, anyio.create_task_group() as tasks:
        tasks.start_soon(steps)
        fetched = await target.fetcher.fetch(place, ALL)
        tasks.cancel_scope.cancel()
    assert (fetched.num_blocks, fetched.failure) == (40, "")
    assert ordered[0] == NUM_SLOTS // 2
    assert sum(ordered) == 10  # slots' worth of four blocks
    assert len(source.link.for_reading._free) == NUM_SLOTS // 2


async def test_many_that_want_blocks_at_once_get_them_however_few_the_slots_are(tmp_path: Path) -> None:
    source, targets = Cache(), [Cache() for _ in range(NUM_SLOTS)]
    source.hold(NAMES)
    async with serving(source, tmp_path) as place, anyio.create_task_group() as tasks:
        for target in targets:
            tasks.start_soon(target.fetcher.fetch, place, ALL)
    assert [len(target.held()) for target in targets] == [40] * NUM_SLOTS
    assert len(source.link.for_reading._free) == NUM_SLOTS // 2


async def test_a_slot_is_free_again_only_when_the_engine_is_done_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = Cache(), Cache()
    source.hold(NAMES[:4])
    fail_after, patience = anyio.fail_after, list[anyio.CancelScope]()

    @contextmanager
    def noted(seconds: float) -> Iterator[None]:
        with fail_after(seconds) as scope:
            patience.append(scope)
            yield

    async with serving(source, tmp_path) as place, anyio.create_task_group() as tasks:
        orders: list[WriteBlocks] = []

        async def stuck(order: ReadBlocks | WriteBlocks) -> None:
            assert isinstance(order, WriteBlocks)
            orders.append(order)
            patience[0].deadline = anyio.current_time()  # over, now that all has come

        target.link._send = stuck  # the engine answers when it has ended a long step
        monkeypatch.setattr(anyio, "fail_after", noted)
        fetched = await target.fetcher.fetch(place, b"".join(NAMES[:4]))
        assert fetched.failure.startswith("not within")
        assert len(target.link.for_writing._free) == NUM_SLOTS // 2 - 1
        target.link.answered(target.engine.obey(orders[0]))
        assert len(target.link.for_writing._free) == NUM_SLOTS // 2
        tasks.cancel_scope.cancel()
    assert target.held() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", MAX_HEADER_BYTES + 1) + b"x" * 100,
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        struct.pack("<I", 20) + msgspec.msgpack.encode({"type": "Greeting"}).ljust(20, b"\0"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["huge", "over", "garbage", "wrong", "http"],
)
async def test_hostile_headers_end_the_connection_and_nothing_else(tmp_path: Path, said: bytes) -> None:
    source, target = Cache(), Cache()
    source.hold(NAMES[:4])
    async with serving(source, tmp_path) as place:
        with Peer(await address.connect(place)) as hostile:
            await hostile.receive(Greeting)
            await hostile._send(memoryview(said))
            hostile._socket.shutdown(socket.SHUT_WR)
            with pytest.raises((EOFError, ConnectionResetError)):
                await hostile.receive(Part)
        assert (await target.fetcher.fetch(place, ALL)).num_blocks == 4


async def test_a_header_beyond_the_largest_size_is_refused_before_it_has_come() -> None:
    ours, theirs = socket.socketpair()
    with Peer(ours) as peer, theirs:
        theirs.sendall(struct.pack("<I", MAX_HEADER_BYTES + 1))
        with pytest.raises(TransferError, match=f"at most {MAX_HEADER_BYTES}"):
            await peer.receive(Greeting)


@pytest.mark.parametrize(
    "place", ["", "tcp:", "tcp:127.0.0.1:x", "unix:elsewhere:/nowhere", "http://x", "tcp:127.0.0.1:1"]
)
async def test_an_address_that_leads_nowhere_costs_nothing(place: str) -> None:
    target = Cache()
    fetched = await target.fetcher.fetch(place, ALL)
    assert fetched.num_blocks == 0 and fetched.failure


async def test_sockets_of_killed_replicas_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead, _ = address.listen(str(tmp_path), "dead")
    dead.close()
    living, place = address.listen(str(tmp_path), "living")
    other, own = address.listen(str(tmp_path), "other")
    with living, other:
        assert sorted(path.name for path in (tmp_path / "kv").iterdir()) == ["living", "other"]
        (await address.connect(place)).close()
    address.leave(place)
    address.leave(own)
    assert not list((tmp_path / "kv").iterdir())


async def test_two_caches_that_fetch_from_one_another_do_not_wait_for_each_other(tmp_path: Path) -> None:
    left, right = Cache(), Cache()
    left.hold(NAMES[:20])
    right.hold(NAMES[20:])
    async with (
        serving(left, tmp_path / "a") as of_left,
        serving(right, tmp_path / "b") as of_right,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(NUM_SLOTS):
            tasks.start_soon(left.fetcher.fetch, of_right, b"".join(NAMES[20:]))
            tasks.start_soon(right.fetcher.fetch, of_left, b"".join(NAMES[:20]))
        with anyio.fail_after(60):
            while left.fetcher.num_blocks + right.fetcher.num_blocks < 40 * NUM_SLOTS:
                await anyio.sleep(0.01)
    assert left.held() == right.held() == list(range(1, 41))

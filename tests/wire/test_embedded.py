"""The server that we own: where it listens, when it dies, who may have it, and that a restart loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import redis

from tests.consume import consume
from tests.processes import has_ended
from wire import topics
from wire.bus import Bus, BusOptions, embedded_server
from wire.bus.embedded import MAX_SOCKET_PATH, EmbeddedServerError
from wire.desk import serve_desk
from wire.messages import Job
from wire.step import Step

pytestmark = pytest.mark.anyio

OPTIONS = BusOptions(block_s=0.1, reply_timeout_s=30.0, patience_s=60.0, claim_idle_s=1.0)

OWNER = """
import sys, anyio
from wire.bus import embedded_server
async def main():
    async with embedded_server(sys.argv[1]) as url:
        print(url, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.fixture
def state_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hr"))
    yield folder
    shutil.rmtree(folder)


@contextmanager
def owner(state_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that runs a server on this directory."""
    command = [sys.executable, "-c", OWNER, str(state_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the owner of the server did not start"
        server = psutil.Process(server_pid(url))
        try:
            yield process, url
        finally:
            process.kill()
            with suppress(psutil.TimeoutExpired):
                server.wait(60)
            if not has_ended(server):
                server.kill()
                raise AssertionError("the server outlived its owner")


def server_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


async def gone(pid: int) -> None:
    with anyio.fail_after(60):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while not has_ended(process):
                await anyio.sleep(0.01)


async def test_it_listens_on_a_private_unix_socket_only_and_is_gone_afterwards(state_dir: Path) -> None:
    async with embedded_server(state_dir) as url:
        path = Path(url.removeprefix("unix://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        pid = server_pid(url)
        assert not [c for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
        with redis.Redis.from_url(url) as client:
            wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
            assert {name: client.config_get(name)[name] for name in wanted} == wanted
    assert not psutil.pid_exists(pid)
    assert not path.exists()


async def test_what_was_written_is_there_at_the_next_start(state_dir: Path, make_job: Any) -> None:
    async with embedded_server(state_dir) as url, Bus.open(url, OPTIONS) as bus:
        secret = await bus.secret("blocks")
        await bus.admit(make_job(), {}, to=topics.history(0), ttl_s=60)
    async with embedded_server(state_dir) as url, Bus.open(url, OPTIONS) as bus:
        assert await bus.secret("blocks") == secret
        [delivery] = await bus.consumer(topics.history(0), group="g", name="one").read(1)
        assert isinstance(delivery.message, Job)
        assert delivery.message == make_job(deadline=delivery.message.deadline)


async def test_it_dies_with_its_owner_also_by_sigkill_and_the_next_start_works(state_dir: Path) -> None:
    with owner(state_dir) as (process, url):
        pid = server_pid(url)
        process.kill()
        process.wait()
        async with embedded_server(state_dir) as again:  # waits for the old server, then takes over its stale socket
            assert again == url
            assert server_pid(again) != pid
        await gone(pid)


async def test_two_on_one_directory_is_one_clear_error(state_dir: Path) -> None:
    with owner(state_dir) as (process, url):
        with anyio.fail_after(60), pytest.raises(EmbeddedServerError, match=f"in use by process {process.pid}"):
            async with embedded_server(state_dir):
                pass
        assert server_pid(url)  # the first one is untouched


async def test_a_long_state_directory_gets_a_short_socket_path_of_our_own(state_dir: Path) -> None:
    deep = state_dir / ("d" * 80) / ("e" * 80)
    async with embedded_server(deep) as url:
        path = Path(url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= MAX_SOCKET_PATH
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert (deep / "bus" / "appendonlydir").is_dir()
        async with Bus.open(url, OPTIONS) as bus:
            assert await bus.secret("x")
    shutil.rmtree(path.parent)


async def test_a_path_with_odd_characters_is_quoted_in_the_url(state_dir: Path) -> None:
    async with embedded_server(state_dir / "a b#c?d%e") as url, Bus.open(url, OPTIONS) as bus:
        assert await bus.secret("x")


async def test_a_server_that_cannot_start_says_why(state_dir: Path) -> None:
    folder = state_dir / "bus" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("no manifest\n")
    with anyio.fail_after(60), pytest.raises(EmbeddedServerError, match="AOF manifest"):
        async with embedded_server(state_dir):
            pass


async def test_an_error_in_the_block_comes_out_as_it_is(state_dir: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with embedded_server(state_dir):
            raise KeyError("mine")


async def test_a_crashed_server_is_started_again(state_dir: Path) -> None:
    async with embedded_server(state_dir) as url, Bus.open(url, OPTIONS) as bus:
        secret = await bus.secret("x")
        os.kill(server_pid(url), signal.SIGKILL)
        assert await bus.secret("x") == secret


class Load:
    """A ring of one desk with an edge: everything that passes is counted at its end."""

    def __init__(self, url: str, make_job: Any, number: int) -> None:
        self.url, self.make_job, self.number = url, make_job, number
        self.history, self.tokenizer, self.edge = topics.history(0), topics.tokenizer(0, "m"), topics.edge("e")
        self.handled: dict[str, int] = {}
        self.received: list[str] = []
        self.pids: set[int] = set()

    async def desk(self) -> None:
        async def handle(_job: Job, _record: dict[str, Any]) -> Step:
            return Step(to=self.tokenizer)

        async with Bus.open(self.url, OPTIONS) as bus:
            await serve_desk(bus, name="history", streams=[self.history], consumer="one", handle=handle)

    async def admit(self) -> None:
        async with Bus.open(self.url, OPTIONS) as bus:
            for at in range(self.number):
                assert await bus.admit(self.make_job(f"r{at}"), {}, to=self.history, ttl_s=60)
                await bus.send(self.edge, self.make_job(f"r{at}"), maxlen=10_000)

    async def restart(self) -> None:
        async with Bus.open(self.url, OPTIONS) as bus:
            for share in (0.3, 0.6):
                while len(self.handled) < self.number * share:
                    await anyio.sleep(0.001)
                info = (await bus.route.call("", "INFO", "server")).decode()
                pid = int(info.split("process_id:")[1].split()[0])
                self.pids.add(pid)
                os.kill(pid, signal.SIGTERM)
                await gone(pid)

    async def finish(self) -> None:
        async with Bus.open(self.url, OPTIONS) as bus:
            async for delivery in consume(bus, self.tokenizer, group="g", consumer="end"):
                name = delivery.message.request_id  # type: ignore[union-attr]
                # False also when the reply to our own acknowledgement got lost.
                if await bus.finish(delivery) or name not in self.handled:
                    self.handled[name] = self.handled.get(name, 0) + 1
                if len(self.handled) == self.number:
                    break

    async def read(self) -> None:
        async with Bus.open(self.url, OPTIONS) as bus, aclosing(bus.inbox(self.edge)) as inbox:
            while len(self.received) < self.number:
                self.received.append((await anext(inbox)).request_id)  # type: ignore[union-attr]


async def test_a_server_restarted_twice_under_load_loses_and_doubles_nothing(state_dir: Path, make_job: Any) -> None:
    with anyio.fail_after(60):
        async with embedded_server(state_dir) as url, anyio.create_task_group() as services:
            load = Load(url, make_job, number=300)
            services.start_soon(load.desk)
            async with anyio.create_task_group() as tasks:
                for work in (load.admit, load.restart, load.finish, load.read):
                    tasks.start_soon(work)
            async with Bus.open(url, OPTIONS) as bus:
                for stream in (load.history, load.tokenizer):
                    assert await bus.route.call(stream, "XLEN", stream) == 0
            services.cancel_scope.cancel()
    assert len(load.pids) == 2
    assert load.received == [f"r{at}" for at in range(300)]
    assert load.handled == {f"r{at}": 1 for at in range(300)}

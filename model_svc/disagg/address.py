"""Where a replica gives its blocks away: `unix:HOST:PATH` for replicas of the same host, `tcp:IP:PORT` for all."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from model_svc.disagg.errors import TransferError

_BACKLOG = 64
_LONGEST_PATH = 100  # of a unix socket; the kernel has room for 107


def listen(state_dir: str, replica_id: str, host: str = "", port: int = 0) -> tuple[socket.socket, str]:
    """Return a listening socket and its address: TCP at `host`, or a unix socket below the state directory.

    Raises OSError.
    """
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        own, port = listener.getsockname()[:2]
        address = f"tcp:{own}:{port}"
    else:
        path = _path(Path(state_dir).expanduser() / "kv", replica_id)
        listener = _listener(path)
        address = f"unix:{socket.gethostname()}:{path}"
    listener.setblocking(False)
    return listener, address


def facing(url: str) -> str:
    """Return the address of ours that speaks with the bus: whoever reaches the same bus may reach us there.

    The host's own name would not do: where /etc/hosts maps it to 127.0.1.1, others would ask themselves. Blocks while
    the name is looked up; sends nothing. Raises OSError.
    """
    bus = urlsplit(url)
    if bus.scheme.startswith("unix"):
        return "127.0.0.1"
    failed = OSError(f"{bus.hostname} has no address")
    for family, kind, _, _, place in socket.getaddrinfo(bus.hostname, bus.port or 6379, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(place)  # of UDP: chooses the way, and so the address, and sends nothing
            except OSError as error:  # no way leads there over this family
                failed = error
                continue
            own: str = probe.getsockname()[0]
            return own
    raise failed


def leave(address: str) -> None:
    """Remove what a listener leaves behind."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        with contextlib.suppress(OSError):
            Path(rest.partition(":")[2]).unlink()


async def connect(address: str) -> socket.socket:
    """Return a socket that is connected to an address. Raises OSError or TransferError."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        host, _, path = rest.partition(":")
        if host != socket.gethostname():
            raise TransferError(f"{address} is a unix socket of another host")
        return await _connected(socket.AF_UNIX, path)
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not port.isdecimal():
        raise TransferError(f"{address!r} is no address of a replica")
    return await _connected(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port)))


async def _connected(family: socket.AddressFamily, place: str | tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(place)
        if code == errno.EINPROGRESS:
            await anyio.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _listener(path: Path) -> socket.socket:
    """Return a socket that listens at a path, where only its owner may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _path(folder: Path, replica_id: str) -> Path:
    """Return where the socket is to be; those of replicas that were killed are removed."""
    if len(str(folder / replica_id)) > _LONGEST_PATH:
        folder = Path(tempfile.gettempdir()) / f"headrace-kv-{os.getuid()}"
        replica_id = replica_id[-_LONGEST_PATH // 2 :]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.iterdir():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                with contextlib.suppress(OSError):
                    path.unlink()
    return folder / replica_id

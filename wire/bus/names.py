"""Looks up the bus's host name; whoever waits for it can give up.

getaddrinfo(3) cannot be interrupted: before a name server that is silent it blocks for half a minute. The event loop's
own lookup leaves a future behind that nobody reads when its caller gives up, and the threads of loops and pools are
waited for when the process ends. So a lookup runs in a daemon thread, at most one for each name at a time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from ipaddress import ip_address

import anyio
import anyio.from_thread
import anyio.lowlevel


class _Lookup:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.addresses: list[str] = []
        self.error: OSError | None = None


class Names:
    """The names of one event loop's servers. Nothing is remembered: a container that comes back has a new address."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], _Lookup] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, best first; one that is given as an address is its own. Raises OSError."""
        if _is_address(host):
            return [host]
        lookup = self._running.get((host, port))
        if lookup is None:
            lookup = self._running[host, port] = self._start(host, port)
        await lookup.done.wait()
        if lookup.error is not None:
            raise lookup.error
        return lookup.addresses

    def _start(self, host: str, port: int) -> _Lookup:
        lookup, loop = _Lookup(), anyio.lowlevel.current_token()

        def finish() -> None:
            del self._running[host, port]
            lookup.done.set()

        def look_up() -> None:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                lookup.addresses = [str(sockaddr[0]) for *_, sockaddr in found]
            except OSError as error:
                lookup.error = error
            except UnicodeError:  # a label that is empty, or longer than 63 characters
                lookup.error = OSError(f"{host!r} is no host name")
            with contextlib.suppress(RuntimeError):  # the event loop is gone: nobody waits any more
                anyio.from_thread.run_sync(finish, token=loop)

        threading.Thread(target=look_up, name=f"lookup of {host}", daemon=True).start()
        return lookup


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True

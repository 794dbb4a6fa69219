"""Ports for servers that are told theirs as a number.

Between the choice and the start of the server nobody else may get the port, so it is not one that the system gives to
whoever connects, a lane's are no other lane's, and it asks for one again only after some hundred others.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

_FIRST, _LAST = 15_000, 32_000
_LANES = 4  # a house listens seconds after it was told its port; a lane that passes must not look like it meanwhile
_STEP = 10  # what is told one port may take those behind it too: an edge's workers each show metrics on one
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what the system gives to whoever connects; not everywhere


def _candidates() -> list[int]:
    last = min(_LAST, int(_RANGE.read_text().split()[0])) if _RANGE.exists() else _LAST
    lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _LANES
    ports = list(range(_FIRST, last if last > _FIRST + 1_000 else _LAST, _STEP))[lane::_LANES]
    start = os.getpid() * 101 % len(ports)  # another session beside this one begins elsewhere
    return ports[start:] + ports[:start]


_ports = itertools.cycle(_candidates())


def free_port() -> int:
    """Return a port that nobody listens on, another one each time until all have had their turn."""
    for port in itertools.islice(_ports, _LAST - _FIRST):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("every port is taken")

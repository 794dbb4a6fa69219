"""Room for connections: each takes a file descriptor, and without one left nothing at all can be opened.

When it is full, the connection that has waited longest for its client's next request ends for the new one, as HTTP
allows. Only when all are being answered is a new one refused.
"""

from __future__ import annotations

import resource
from typing import Protocol

_OURS = 128  # descriptors for the bus, the log, the page's files
_ENOUGH = 65_536


class Waiter(Protocol):
    """A connection, as far as it must be known to make room."""

    @property
    def waits(self) -> bool:
        """Whether no request of it is being worked on."""
        ...

    @property
    def waits_since(self) -> float:
        """Since when."""
        ...

    def shutdown(self) -> None:
        """End it, if it waits."""
        ...


class Room:
    """The connections of one edge."""

    def __init__(self, max_connections: int = 0) -> None:
        """`max_connections` 0: as many as there are file descriptors for."""
        self.limit = max_connections or _by_descriptors()
        self.num_ended = self.num_refused = 0  # for want of room
        self._inside: dict[Waiter, None] = {}  # in the order of their coming, which decides among equals

    def __len__(self) -> int:
        return len(self._inside)

    def make(self) -> bool:
        """Return whether there is room for one more, after ending one that waits if need be."""
        if len(self._inside) < self.limit:
            return True
        longest = min((one for one in self._inside if one.waits), key=lambda one: one.waits_since, default=None)
        if longest is None:
            self.num_refused += 1
            return False
        self.num_ended += 1
        self.leave(longest)
        longest.shutdown()
        return True

    def enter(self, connection: Waiter) -> None:
        """Count a connection."""
        self._inside[connection] = None

    def leave(self, connection: Waiter) -> None:
        """Count it no more."""
        self._inside.pop(connection, None)


def _by_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else min(max(soft - _OURS, soft // 2), _ENOUGH)

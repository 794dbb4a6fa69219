"""Which snapshots of states are kept, by the name of the block that they stand behind; the oldest goes first.

A model with states instead of keys and values knows what came before only where its state was kept: a prefix hit is as
long as the longest prefix with a snapshot. One that a sequence begins with is held until its first step is planned, for
runners work in order: who overwrites it afterwards comes later.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence


class Snapshots:
    """The runner's `num_snapshots` places: free, being written, or named."""

    def __init__(self, num_snapshots: int) -> None:
        self._num = num_snapshots
        self._free = list(range(num_snapshots - 1, -1, -1))
        self._named: OrderedDict[bytes, int] = OrderedDict()
        self._held: Counter[int] = Counter()
        self._written: set[int] = set()

    def covered(self, names: Sequence[bytes]) -> int:
        """Return how many of the blocks of a chain there is a snapshot behind."""
        for count in range(len(names), 0, -1):
            if names[count - 1] in self._named:
                return count
        return 0

    def take(self, name: bytes) -> int:
        """Hold the snapshot of this name and return its place."""
        self._named.move_to_end(name)
        self._held[self._named[name]] += 1
        return self._named[name]

    def let_go(self, place: int) -> None:
        """Stop holding a snapshot."""
        self._held[place] -= 1

    def allocate(self, instead_of: bytes) -> int:
        """Return a place to write to, -1 if all are in use. It is to be registered or freed once it is written.

        Without a free one the snapshot `instead_of` which this one will stand goes first, if there is one.
        """
        if not self._free:
            self.drop(instead_of)
        if not self._free:
            oldest = next((name for name, place in self._named.items() if not self._held[place]), None)
            if oldest is None:
                return -1
            self.drop(oldest)
        place = self._free.pop()
        self._written.add(place)
        return place

    def register(self, place: int, name: bytes) -> None:
        """Name what was written; a second snapshot of one name is not kept."""
        if name in self._named:
            self._named.move_to_end(name)
            self.free(place)
        else:
            self._written.remove(place)
            self._named[name] = place

    def free(self, place: int) -> None:
        """Give up a place that was written, or was to be."""
        self._written.remove(place)
        self._free.append(place)

    def drop(self, name: bytes) -> None:
        """Forget a snapshot, unless somebody begins with it just now or nobody knows it."""
        place = self._named.get(name)
        if place is not None and not self._held[place]:
            del self._named[name]
            self._free.append(place)

    def check_invariants(self, held: Sequence[int], num_written: int) -> None:
        """Assert that each place is in one state, and held and written by those who say so."""
        places = [*self._free, *self._named.values(), *self._written]
        assert sorted(places) == list(range(self._num)), "a snapshot leaked or is in two states"
        assert +self._held == Counter(held), "a snapshot is held by nobody"
        assert len(self._written) == num_written, "a snapshot is written by nobody"

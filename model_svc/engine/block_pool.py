"""The KV blocks: who holds them, which of them can be hit by name, which goes first when room is needed.

A block is *held* (ref count > 0), *plain free* (no name) or *cached free* (named, nobody holds it; oldest goes first).
A block gets its name only when it is full and its step has been collected, so a hit never reads what is not there yet.
Held blocks may be named too: that is how running sequences share a prefix. Named blocks are never written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from model_svc.engine.kv_events import KvEventLog
from model_svc.engine.kv_tier import Kept, KvTier
from model_svc.engine.plan import RunnerInfo


class BlockPool:
    """Ref counts, free lists and the prefix cache of `num_blocks` blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.events = KvEventLog()
        self._refs = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        self._plain = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.tier: KvTier | None = None

    def keep_beside(self, info: RunnerInfo, kept: Kept | None) -> KvTier:
        """Have a second tier, which holds blocks longer than the device does. A block in either can be hit."""
        self.tier = KvTier(info, self._by_name.__contains__, self.events.evicted, kept)
        if self.tier.num_blocks:
            self.report()
        return self.tier

    @property
    def num_free(self) -> int:
        """How many blocks can be had now, cached free ones included."""
        return len(self._plain) + len(self._cached)

    def match(self, names: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix of a chain; a hole ends it. Nothing is taken yet."""
        hits: list[int] = []
        for name in names:
            block = self._by_name.get(name)
            if block is None:
                break
            hits.append(block)
        return hits

    def find(self, name: bytes) -> int | None:
        """Return the block of this name."""
        return self._by_name.get(name)

    def num_free_without(self, hits: Sequence[int]) -> int:
        """How many blocks would be free once `hits` are taken."""
        return self.num_free - sum(self._refs[block] == 0 for block in hits)

    def if_freed(self, hits: Iterable[int]) -> Callable[[Sequence[int]], int]:
        """Return a function that tells how many more blocks, `hits` aside, would be free with one more table let go."""
        held = dict.fromkeys(hits, -1)

        def let_go(table: Sequence[int]) -> int:
            freed = 0
            for block in table:
                left = held.get(block, self._refs[block])
                if left >= 0:
                    held[block] = left - 1
                    freed += left == 1
            return freed

        return let_go

    def take(self, hits: Iterable[int]) -> None:
        """Hold cached blocks, once more if others hold them too."""
        for block in hits:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1

    def allocate(self, num_blocks: int) -> list[int]:
        """Hold fresh blocks; the caller has made sure that there are enough."""
        assert num_blocks <= self.num_free, "allocation without room"
        blocks: list[int] = []
        for _ in range(num_blocks):
            block = self._plain.pop() if self._plain else self._evict()
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def free(self, table: Sequence[int]) -> None:
        """Let go of a sequence's blocks, last one first, so that the end of a chain is evicted before its beginning."""
        for block in reversed(table):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._names[block] is None:
                    self._plain.append(block)
                else:
                    self._cached[block] = None

    def register(self, block: int, name: bytes) -> None:
        """Make a held, full, computed block known. A second block of the same content stays nameless."""
        if name in self._by_name:
            return
        self._names[block] = name
        self._by_name[name] = block
        self.events.stored(name)
        if self.tier is not None:
            self.tier.note(name, block)

    def forget(self, table: Iterable[int]) -> None:
        """Take the names from held blocks whose content is not to be trusted."""
        for block in table:
            if self._names[block] is not None:
                name = self._unname(block)
                if self.tier is not None:
                    self.tier.forget(name)
                self.events.evicted(name)

    def report(self) -> None:
        """Log all names anew, for a listener that missed some."""
        self.events.reset(dict.fromkeys(chain(self._by_name, self.tier or ())))

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        name = self._unname(block)
        if self.tier is not None:
            self.tier.lets_go(name, block)
        else:
            self.events.evicted(name)
        return block

    def _unname(self, block: int) -> bytes:
        name = self._names[block]
        assert name is not None, "a block without a name"
        self._names[block] = None
        del self._by_name[name]
        return name

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that the pool agrees with itself and with the block tables of all running sequences."""
        held = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a block twice in one table"
            for block in table:
                held[block] += 1
        assert held == self._refs, "ref counts differ from the tables"
        free = [*self._plain, *self._cached]
        assert len(set(free)) == len(free), "a block twice on the free lists"
        assert {block for block, refs in enumerate(self._refs) if refs == 0} == set(free), "a block leaked"
        assert all(self._names[block] is None for block in self._plain), "a named block among the plain ones"
        assert all(self._names[block] is not None for block in self._cached), "a nameless block among the cached ones"
        named = {name: block for block, name in enumerate(self._names) if name is not None}
        assert named == self._by_name, "names differ"
        if self.tier is not None:
            self.tier.check_invariants(self._by_name)

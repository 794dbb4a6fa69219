"""Which replica holds which KV block: a plain dict from block name to a bit set of replicas.

A block's name hashes its whole past, so the longest cached prefix is one walk along the prompt's names that ends where
the last replica drops out; no tree is needed. Each replica owns one bit. Dropping a replica is O(1): its bit leaves the
mask of living bits at once and its entries are swept away later, a slice at a time; the bit is reused after the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable

from wire.block_hash import DIGEST_BYTES


def split(raw: bytes) -> list[bytes]:
    """Return the block names that stand concatenated in `raw`; a torn last one is left out."""
    whole = len(raw) - len(raw) % DIGEST_BYTES
    return [raw[at : at + DIGEST_BYTES] for at in range(0, whole, DIGEST_BYTES)]


class PrefixIndex:
    """The blocks of every replica of one model, at most `max_blocks` different names.

    When the index is full, names it does not know are left out and counted in `num_refused`: a match may then be
    shorter than it could be, never longer.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[bytes, int] = {}
        self._bits: dict[str, int] = {}
        self._owned: dict[int, set[bytes]] = {}
        self._dropped: dict[int, set[bytes]] = {}
        self._living = 0
        self.num_refused = 0

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas that have entries or had some."""
        return tuple(self._bits)

    def num_blocks(self, replica_id: str) -> int:
        """Return how many blocks the index knows of a replica."""
        bit = self._bits.get(replica_id)
        return len(self._owned[bit]) if bit is not None else 0

    def add(self, replica_id: str, names: Iterable[bytes]) -> None:
        """Note that the replica holds these blocks."""
        bit = self._bits.get(replica_id) or self._new_bit(replica_id)
        owned, holders = self._owned[bit], self._holders
        for name in names:
            bits = holders.get(name)
            if bits is None:
                if len(holders) >= self._max_blocks:
                    self.num_refused += 1
                    continue
                bits = 0
            holders[name] = bits | bit
            owned.add(name)

    def remove(self, replica_id: str, names: Iterable[bytes]) -> None:
        """Note that the replica does not hold these blocks any more."""
        bit = self._bits.get(replica_id)
        if bit is None:
            return
        owned = self._owned[bit]
        for name in names:
            if name in owned:
                owned.discard(name)
                self._clear(name, bit)

    def drop(self, replica_id: str) -> None:
        """Forget a replica. Its blocks never match again; `sweep` gives their memory back."""
        bit = self._bits.pop(replica_id, None)
        if bit is not None:
            self._living &= ~bit
            self._dropped[bit] = self._owned.pop(bit)

    def sweep(self, budget: int) -> bool:
        """Clear up to `budget` entries of dropped replicas; return whether more are left."""
        while self._dropped and budget > 0:
            bit, names = next(iter(self._dropped.items()))
            while names and budget > 0:
                self._clear(names.pop(), bit)
                budget -= 1
            if not names:
                del self._dropped[bit]
        return bool(self._dropped)

    def match(self, names: Iterable[bytes]) -> dict[str, int]:
        """Return for each replica how many leading blocks of the chain it holds, those with none left out."""
        found = self._living
        lengths: dict[int, int] = {}
        length = 0
        holders = self._holders
        for name in names:
            bits = holders.get(name, 0) & found
            if bits != found:
                if length:
                    lengths[found & ~bits] = length
                found = bits
                if not found:
                    break
            length += 1
        if found and length:
            lengths[found] = length
        return {
            replica_id: length
            for replica_id, bit in self._bits.items()
            for bits, length in lengths.items()
            if bits & bit
        }

    def check_invariants(self) -> None:
        """Assert that both directions of the index agree."""
        by_bit = {**self._owned, **self._dropped}
        assert set(self._bits.values()) == set(self._owned)
        assert self._living == sum(self._owned)
        assert all(bits for bits in self._holders.values())
        for bit, names in by_bit.items():
            assert names == {name for name, bits in self._holders.items() if bits & bit}

    def _new_bit(self, replica_id: str) -> int:
        taken = self._living | sum(self._dropped)
        bit = ~taken & (taken + 1)  # the lowest bit that nobody has
        self._bits[replica_id] = bit
        self._owned[bit] = set()
        self._living |= bit
        return bit

    def _clear(self, name: bytes, bit: int) -> None:
        bits = self._holders[name] & ~bit
        if bits:
            self._holders[name] = bits
        else:
            del self._holders[name]

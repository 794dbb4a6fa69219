"""Memory that service and engine share, so that a block's bytes cross between them without passing the pipe.

The engine copies between its cache and a slot in the time of a memcpy, between two steps; the service moves the slot's
bytes to or from a socket at whatever pace the other replica has. One half of the slots serves, the other fetches: two
replicas that fetch from one another can then never wait for each other's slots.
"""

from __future__ import annotations

import mmap
import os
import tempfile

SLOT_BYTES = 4 << 20  # copied in about a millisecond: what one order may take of the time between two steps
NUM_SLOTS = 8


def open_memory() -> int:
    """Return the descriptor of memory that two processes can map; it has no size yet."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-kv")  # no file system, so no limit of /dev/shm either
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Staging:
    """The mapped slots. A slot holds `blocks_per_slot` blocks of `block_bytes`, at least one."""

    def __init__(self, descriptor: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.blocks_per_slot = max(1, SLOT_BYTES // block_bytes)
        self._slot_bytes = -(-self.blocks_per_slot * block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = self._slot_bytes * NUM_SLOTS
        if os.fstat(descriptor).st_size < size:  # pages are taken when they are first written
            os.ftruncate(descriptor, size)
        self._memory = memoryview(mmap.mmap(descriptor, size))

    def blocks(self, slot: int, num_blocks: int) -> memoryview:
        """Return the first blocks of a slot."""
        assert 0 <= slot < NUM_SLOTS and 0 <= num_blocks <= self.blocks_per_slot, "outside the staging memory"
        begin = slot * self._slot_bytes
        return self._memory[begin : begin + num_blocks * self.block_bytes]

"""Touches the memory of KV blocks in idle times, so that no answer waits for the system to provide it.

The first write to a page of 2 MB takes 0.1 ms on bare metal, and 16 in a guest whose host has to find the memory. A
cache is many tensors (SmolLM2's are 60) that come to their next pages at about the same block, every 340 blocks there.
The pool hands out blocks that were never used in ascending order, so it is known which pages these are.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterable

from kernels.native.huge_pages import PAGE
from model_svc.engine.plan import SequenceStep
from model_svc.runner.kv_cache import KvCache

_log = logging.getLogger(__name__)
# Linux 5.14: have pages as after a first write, and leave what is in them. Python has no name for it.
_MADV_POPULATE_WRITE = 23


class Untouched:
    """The pages of a cache in a CPU's memory behind the highest block that was ever used: one of each tensor is taken.

    Before a block was used none is: at rest an unused cache takes no memory.
    """

    def __init__(self, cache: KvCache) -> None:
        self._num_used = 0  # blocks up to and with the highest
        self._taken: set[int] = set()
        self._tensors = [
            (one.data_ptr(), one.data_ptr() + one.nbytes, one[0].nbytes)  # begin, end, bytes of a block
            for layer in cache.paged
            for one in layer
            if one.device.type == "cpu" and sys.platform == "linux"
        ]

    def note(self, sequences: Iterable[SequenceStep]) -> None:
        """Take note of the blocks that a step brings into use."""
        for item in sequences:
            if item.new_blocks:
                self._num_used = max(self._num_used, 1 + max(item.new_blocks))

    def take_page(self) -> bool:
        """Take one page; returns False if none was to be taken."""
        for begin, end, block_bytes in self._tensors if self._num_used else ():
            page = -(-(begin + self._num_used * block_bytes) // PAGE) * PAGE
            if page < end and page not in self._taken:
                self._taken.add(page)
                self._take(page)
                return True
        return False

    def _take(self, address: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), _MADV_POPULATE_WRITE):
            _log.info("no memory is taken ahead: %s", os.strerror(ctypes.get_errno()))
            self._tensors = []

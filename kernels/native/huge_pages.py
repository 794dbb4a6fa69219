"""Memory for packed weights and for the KV cache in pages of 2 MB, where the system gives them.

A step reads all weights once, in order. With pages of 4 KB a core's own prefetching ends at each of them and one
line in 64 waits for the page table as well: 14 GB/s on one Sapphire Rapids core, 19 with large pages. And what answers
write for the first time costs one fault for 2 MB.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

PAGE = 2 << 20
_REGION = 16 * PAGE  # shared by weights that are smaller; pages that none has touched take no memory
_ALIGN = 64

_region: Tensor | None = None
_used = 0


def zeros(size: int) -> Tensor:
    """Return so many zero bytes that begin with a cache line; held as long as they or their neighbours are."""
    global _region, _used
    if size > _REGION // 2:
        return _map(size)[:size]
    if _region is None or _used + size > _region.nbytes:
        _region, _used = _map(_REGION), 0
    part = _region[_used : _used + size]
    _used += -(-size // _ALIGN) * _ALIGN
    return part


def _map(size: int) -> Tensor:
    """Return fresh memory that begins with a page."""
    whole = mmap.mmap(-1, -(-size // PAGE) * PAGE + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            whole.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(whole, dtype=torch.uint8)
    start = -memory.data_ptr() % PAGE
    return memory[start : start + -(-size // PAGE) * PAGE]

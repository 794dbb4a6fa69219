"""Ranks as threads of one process: their models exchange over gloo as processes do, and a test sees them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from model_svc.layers.group import Group, Ranks
from model_svc.parallel.stage import Stage

R = TypeVar("R")


class Threads:
    """A group whose ranks are threads, or (`staged`) stages."""

    def __init__(self, size: int, *, staged: bool = False) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="rank")
        store = HashStore()
        prefixes = [PrefixStore("data", store) for _ in range(size)]

        def join(rank: int) -> Group:
            torch.set_num_threads(1)
            backend = dist.ProcessGroupGloo(prefixes[rank], rank, size, timedelta(seconds=60))
            kind, group = dist.ProcessGroup.BackendType.GLOO, dist.ProcessGroup(prefixes[rank], rank, size)
            group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, backend)
            if staged:
                return Stage(rank, size, group, group)
            return Ranks(rank, size, group, group)

        self.groups = list(self._pool.map(join, range(size)))

    def each(self, call: Callable[[Group], R]) -> list[R]:
        """Call a function on every rank at once."""
        return list(self._pool.map(call, self.groups))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


@contextmanager
def ranks(size: int, *, staged: bool = False) -> Iterator[Threads]:
    """Run `size` ranks."""
    threads = Threads(size, staged=staged)
    try:
        yield threads
    finally:
        threads.close()

"""How ranks find one another: over a file of rank 0's, then by gloo between hosts' memories and NCCL between cards.

All ranks of a model are on one machine, so nothing listens outside of it.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from model_svc.layers.group import Group, Ranks
from model_svc.parallel.stage import Stage

_LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


class JoinedRanks(Ranks):
    """A group of processes."""

    def connect(self, first: Tensor) -> None:
        """Exchange something: libraries connect, and take their memory, when they first do."""
        self.gather(first)
        self.add_up(first)

    def close(self) -> None:
        """Leave; all do so together."""
        dist.destroy_process_group()


class JoinedStage(Stage):
    """A stage that is a process."""

    def connect(self, first: Tensor) -> None:
        """Exchange something, as ranks do."""
        if not self.is_first:
            self.take(first)
        if not self.is_last:
            self.pass_on(first)

    def close(self) -> None:
        """Leave; all do so together."""
        dist.destroy_process_group()


def arrive(rank: int, size: int, place: str) -> Store:
    """Come to the meeting place, and tell so."""
    store = FileStore(place, size)
    store.set(f"rank {rank}", "here")
    return store


def is_here(store: Store, rank: int) -> bool:
    """Tell whether a rank has come to the meeting place."""
    return bool(store.check([f"rank {rank}"]))


def join(store: Store, rank: int, size: int, on: str, patience_s: float, *, staged: bool = False) -> Group:
    """Become a rank of a group, or (`staged`) a stage; returns when all have."""
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", _LOOPBACK)
    patience = timedelta(seconds=patience_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    control = data = dist.group.WORLD
    device = torch.device(on)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
        data = dist.new_group(backend="nccl")
    group = (JoinedStage if staged else JoinedRanks)(rank, size, data, control, patience_s)
    group.connect(torch.ones(size, device=device))  # before anybody looks at how much memory is free
    return group

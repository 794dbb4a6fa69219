"""Ranks that compute one model together, each with its part of the weights.

Every collective is called by all ranks, in the same order and with equal sizes: they take the same plans, so none of
them has to ask. A model of one rank has a group of one, whose collectives do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernels import dispatch
from kernels.native import record

# torch 2.13 has renamed it.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class RankError(Exception):
    """The ranks of a model cannot go on together; the message names the rank or the setting."""


class Group:
    """One rank alone."""

    rank = 0
    size = 1
    stage = 0
    stages = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank embeds the tokens."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank has the output head, and draws."""
        return self.stage == self.stages - 1

    def layers(self, count: int) -> range:
        """Return which of `count` layers are this rank's."""
        return range(count)

    def take(self, into: Tensor) -> None:
        """Fill `into` with the hidden states that come from the stage before this one."""
        raise NotImplementedError("the first stage has none before it")

    def pass_on(self, x: Tensor) -> None:
        """Hand hidden states to the next stage."""
        raise NotImplementedError("the last stage has none behind it")

    def add_up(self, x: Tensor) -> None:
        """Replace `x` in place by the sum over all ranks' `x`, which has the same bits everywhere."""

    def gather(self, x: Tensor) -> Tensor:
        """Return every rank's `x`, [size, *x.shape]."""
        return x[None]

    def least(self, number: int) -> int:
        """Return the smallest of all ranks' numbers."""
        return number

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Leave out all exchange inside: for steps that nobody wants the results of, which ranks run on their own."""
        yield

    def close(self) -> None:
        """Leave."""


ALONE = Group()


class Ranks(Group):
    """Rank `rank` of `size`. `data` joins the devices (NCCL or gloo), `control` the hosts (gloo)."""

    def __init__(self, rank: int, size: int, data: Any, control: Any, patience_s: float = 120.0) -> None:
        self.rank = rank
        self.size = size
        self._data = data
        self._control = control
        self._patience_s = patience_s
        self._silent = False

    def add_up(self, x: Tensor) -> None:
        """Replace `x` in place by the sum over all ranks' `x`."""
        record.refuse("ranks add up what they computed")
        if self._silent:
            return
        if self.size > 2 and dispatch.fixed():  # which order a library takes hangs on how much it has to add
            first, *others = self.gather(x).unbind(0)
            x.copy_(first)
            for part in others:
                x.add_(part)
            return
        dist.all_reduce(x, group=self._data)

    def gather(self, x: Tensor) -> Tensor:
        """Return every rank's `x`, [size, *x.shape]."""
        record.refuse("ranks show one another what they computed")
        parts = x.new_empty(self.size, *x.shape)
        if self._silent:
            parts[:] = x
        else:
            _all_gather(parts.view(-1), x.contiguous().view(-1), group=self._data)
        return parts

    def least(self, number: int) -> int:
        """Return the smallest of all ranks' numbers. Raises RankError when one does not come in time."""
        return least_of(self._control, number, self._patience_s)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Leave out all exchange inside."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False


def least_of(control: Any, number: int, patience_s: float) -> int:
    """Return the smallest number that a rank of `control` calls this with. Raises RankError if one does not come."""
    try:
        control.monitored_barrier(timedelta(seconds=patience_s))
    except RuntimeError as error:
        raise RankError(f"a rank is missing at the start: {str(error).splitlines()[0]}") from error
    found = torch.tensor([number], dtype=torch.int64)
    dist.all_reduce(found, dist.ReduceOp.MIN, group=control)
    return int(found)

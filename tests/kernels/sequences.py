"""Steps over sequences that keep a state: whose tokens are where, and rows of slots that nobody may read."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


class Sequences:
    """Sequences of so many tokens, each with as many before them, in scattered slots of `num_slots`."""

    def __init__(self, lengths: list[int], before: list[int], device: str, *, num_slots: int = 9) -> None:
        generator = torch.Generator().manual_seed(3)
        self.lengths, self.before = lengths, before
        self.slots = torch.randperm(num_slots, generator=generator)[: len(lengths)].int().to(device)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        self.query_start = ends.int().to(device)
        self.context_lens = torch.tensor([n + m for n, m in zip(lengths, before, strict=True)]).int().to(device)
        self.num_tokens = int(ends[-1])
        self.longest = max(lengths, default=0)
        self.num_slots = num_slots

    def parts(self) -> list[slice]:
        """Return each sequence's rows."""
        ends = self.query_start.tolist()
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def states(self, *shape: int) -> Tensor:
        """Return a state for each slot and one for nobody, NaN where no sequence has one."""
        states = torch.full((self.num_slots + 1, *shape), float("nan"), device=self.query_start.device)
        for slot, before in zip(self.slots.tolist(), self.before, strict=True):
            if before:
                states[slot] = torch.randn(shape)
        return states

"""One line of the kernels' table: what runs, the least it must take, and what it is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loadtest.device_time import Run

BF16, CUDA = torch.bfloat16, "cuda"


@dataclass(frozen=True)
class Case:
    """One line of the table: `runs` do the same work on different inputs; bytes or flops are the least it must take."""

    shape: str
    runs: Sequence[Run]
    bytes: int = 0
    flops: int = 0
    rival: str = ""
    rival_runs: Sequence[Run] = ()


def randn(*shape: int) -> Tensor:
    """Return random bf16 numbers on the card."""
    return torch.randn(shape, device=CUDA, dtype=BF16)

"""Where a step is unpacked to: buffers for the largest one, at fixed addresses that recorded steps read."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.step_inputs import StepInputs


def step_buffers(T: int, S: int, num_blocks: int, device: torch.device) -> StepInputs:
    """Return zeroed buffers for T tokens of S sequences with `num_blocks` blocks each."""

    def zeros(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    return StepInputs(
        ids=zeros(T),
        positions=zeros(T, dtype=torch.int64),
        slot_mapping=zeros(T, dtype=torch.int64),
        block_tables=zeros(S, num_blocks),
        query_start=zeros(S + 1),
        context_lens=zeros(S),
        last_rows=zeros(S, dtype=torch.int64),
        temperature=zeros(S, dtype=torch.float32),
        top_p=zeros(S, dtype=torch.float32),
        min_p=zeros(S, dtype=torch.float32),
        top_k=zeros(S),
        seeds=zeros(S, dtype=torch.int64),
        counters=zeros(S, dtype=torch.int64),
    )

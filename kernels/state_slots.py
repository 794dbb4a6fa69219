"""Whose tokens a step has, for ops that keep a state of each sequence: its slot, its rows, its context."""

import torch
from torch import Tensor


def check_sequences(slots: Tensor, query_start: Tensor, context_lens: Tensor) -> None:
    """Raise ValueError naming the argument that does not fit."""
    S = slots.shape[0]
    for name, tensor, shape in (
        ("slots", slots, (S,)),
        ("query_start", query_start, (S + 1,)),
        ("context_lens", context_lens, (S,)),
    ):
        if tensor.shape != shape or tensor.dtype != torch.int32:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be int32 {shape}")

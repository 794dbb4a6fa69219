"""Whose a step's tokens are, as int32 tensors that many ops take: their checks. S sequences."""

import torch
from torch import Tensor


def check_tables(block_tables: Tensor, query_start: Tensor, context_lens: Tensor) -> None:
    """Raise ValueError naming the argument that does not fit `context_lens` [S]: tables [S, any], starts [S + 1]."""
    S = context_lens.shape[0]
    _check("block_tables", block_tables, (S, block_tables.shape[-1]))
    _check("query_start", query_start, (S + 1,))
    _check("context_lens", context_lens, (S,))


def check_sequences(slots: Tensor, query_start: Tensor, context_lens: Tensor) -> None:
    """Raise ValueError naming the argument that does not fit `slots` [S]: starts [S + 1], contexts [S]."""
    S = slots.shape[0]
    _check("slots", slots, (S,))
    _check("query_start", query_start, (S + 1,))
    _check("context_lens", context_lens, (S,))


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape or tensor.dtype != torch.int32:
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be int32 {shape}")

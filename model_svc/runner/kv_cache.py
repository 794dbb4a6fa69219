"""The paged KV cache: two tensors per layer, one of a layer of latents, and how many blocks of it fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.native import huge_pages
from model_svc.layers.step import LayerKv
from model_svc.models.decoder import KvShape
from model_svc.runner.host_memory import available_bytes
from model_svc.runner.state_pool import StatePool

_SHARE_OF_FREE = 0.3  # after the weights are loaded: activations and whoever else lives here need the rest
_CPU_LIMIT = 1 << 30  # a laptop's memory belongs to its owner


class KvCache:
    """Keys and values of layers with attention: `paged[i]` is (k, v), each [N, B, K, D], or (latents,).

    `layers` are all of a model: those, and between them the layers that have `states`.

    With `heads_first` a block's memory is [K, B, D]: native kernels take one head after another, so each then reads
    2 KB in a row (16 tokens, 64 dimensions of 2 bytes) instead of lines that lie apart.
    """

    def __init__(
        self,
        shapes: Sequence[KvShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        heads_first: bool = False,
        states: StatePool | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size

        def zeros(shape: KvShape) -> Tensor:
            if heads_first:
                size = (num_blocks, shape.num_kv_heads, block_size, shape.head_dim)
                return _zeros(size, dtype, device).transpose(1, 2)
            return _zeros((num_blocks, block_size, shape.num_kv_heads, shape.head_dim), dtype, device)

        self.paged: list[LayerKv] = [tuple(zeros(shape) for _ in range(shape.tensors)) for shape in shapes]
        self.states = states or StatePool((), 0, 0, device)
        self.layers = self.states.among(self.paged)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on the CPU as pages that the system hands out at their first write: unused ones cost nothing.

    They are of 2 MB: a guest's first writes to pages of 4 KB took 15 to 25 % of a step of 16 streams (Zen 5).
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return huge_pages.zeros(math.prod(size) * dtype.itemsize).view(dtype).view(size)


def bytes_per_token(shapes: Sequence[KvShape], dtype: torch.dtype) -> int:
    """Return how much one token takes in all layers together."""
    return sum(shape.tensors * shape.num_kv_heads * shape.head_dim for shape in shapes) * dtype.itemsize


def free_bytes() -> int:
    """Return how much of the memory that the machine and the container leave us the cache may take by default."""
    return min(int(available_bytes() * _SHARE_OF_FREE), _CPU_LIMIT)

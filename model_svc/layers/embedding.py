"""The embedding table and the output head, which many checkpoints tie (store once).

Several ranks share the head's work and all have the whole table: a table that is cut would take an exchange more.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from kernels import embedding
from kernels.native.packed_weight import PackedWeight
from model_svc.layers.linear import Linear
from model_svc.layers.loader import Loader
from model_svc.layers.parallel_linear import GatheredLinear, head_parts
from model_svc.weights.source import Stored, narrow
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.tensor import QuantizedTensor

_log = logging.getLogger(__name__)
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Embedding:
    """Token ids -> rows [T, E], times `scale` where the architecture asks for it."""

    def __init__(self, table: Tensor | PackedWeight, scale: float | None = None) -> None:
        self._table = table
        # Rounded like the table: checkpoints were trained with a scale of that precision.
        dtype = table.dtype if isinstance(table, Tensor) else torch.float32
        self._scale = None if scale is None else float(torch.tensor(scale, dtype=dtype))

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` [T]."""
        return embedding.embedding(ids, self._table, scale=self._scale)


def load_tables(
    loader: Loader, vocab: int, hidden: int, *, tied: bool, scale: float | None
) -> tuple[Embedding | None, Linear | None]:
    """Fetch embedding and head; None for what another stage has.

    Tied: either tensor is enough, unequal ones are reported. Untied: both must exist.

    Raises CheckpointError naming what is missing.
    """
    source, shape = loader.source, (vocab, hidden)
    if not tied:
        embed, rows = source.get_shard(EMBED, shape), source.get_shard(HEAD, shape)
        return _embedding(loader, embed, scale), _head(loader, rows, vocab)
    name = EMBED if source.has(EMBED) or not source.has(HEAD) else HEAD
    stored = source.get_shard(name, shape)
    if name == EMBED and source.has(HEAD) and not _equal(stored, source.get_shard(HEAD, shape)):
        _log.warning(
            "the config ties head and embeddings, but the checkpoint's two tensors differ; embeddings are used"
        )
    if loader.group.stages > 1:
        return _embedding(loader, stored, scale), _head(loader, stored, vocab)
    table = loader.method.table(stored)
    # A dense method shares one matrix between both; one that computes on blocks gets them as stored.
    return Embedding(table, scale), _head(loader, table if isinstance(table, Tensor) else stored, vocab)


def _embedding(loader: Loader, rows: Stored, scale: float | None) -> Embedding | None:
    return Embedding(loader.method.table(rows), scale) if loader.group.is_first else None


def _head(loader: Loader, rows: Stored, vocab: int) -> Linear | None:
    group = loader.group
    if not group.is_last:
        return None
    if group.size == 1:
        return Linear(loader.method.linear([rows], None))
    width, begins = head_parts(vocab, group.size)
    own = narrow(rows, 0, begins[group.rank], width)
    return GatheredLinear(loader.method.linear([own], None), group, vocab, begins)


def _equal(left: Stored, right: Stored) -> bool:
    if isinstance(left, BlockTensor) and isinstance(right, BlockTensor) and left.type == right.type:
        return torch.equal(left.blocks, right.blocks)
    numbers = [item.dequantize() if isinstance(item, QuantizedTensor) else item.float() for item in (left, right)]
    return torch.equal(*numbers)

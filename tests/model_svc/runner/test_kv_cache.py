"""Where blocks lie in memory: a short context takes few of the system's pages, whatever the number of layers."""

from __future__ import annotations

import torch

from model_svc.models.decoder import KvShape
from model_svc.runner.kv_cache import KvCache


def test_on_a_cpu_what_all_layers_keep_of_a_block_lies_side_by_side() -> None:
    shapes = [KvShape(2, 8), KvShape(1, 16), KvShape(4, 8)]
    cache = KvCache(shapes, 5, 4, torch.float16, torch.device("cpu"), heads_first=True)
    per_block = sum(2 * shape.num_kv_heads * 4 * shape.head_dim for shape in shapes)
    tensors = [tensor for layer in cache.layers for tensor in layer]
    assert {tensor.stride(0) for tensor in tensors} == {per_block}
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [float(tensor.float().mean()) for tensor in tensors] == list(range(6))  # none lies on another
    begin = min(tensor.data_ptr() for tensor in tensors)
    assert all(tensor[0].data_ptr() < begin + 2 * per_block for tensor in tensors)

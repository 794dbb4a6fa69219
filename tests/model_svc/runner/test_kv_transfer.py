"""Blocks leave a cache as bytes and enter another one as the same blocks, whatever their form."""

from __future__ import annotations

import pytest
import torch

from model_svc.models.decoder import KvShape
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.kv_transfer import KvTransfer, layout_of

SHAPES = [
    [KvShape(2, 16)],
    [KvShape(3, 20), KvShape(1, 7), KvShape(3, 20)],  # layers that differ, and no power of two anywhere
    [KvShape(1, 28, tensors=1), KvShape(1, 28, tensors=1)],  # latents
]


def cache(
    shapes: list[KvShape], dtype: torch.dtype, *, block_size: int = 4, heads_first: bool = False, on: str = "cpu"
) -> KvCache:
    made = KvCache(shapes, 9, block_size, dtype, torch.device(on), heads_first=heads_first)
    for layer in made.layers:
        for tensor in layer:
            tensor.copy_(torch.randn(tensor.shape).to(dtype))
    return made


@pytest.mark.parametrize("shapes", SHAPES, ids=["even", "odd", "latents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_blocks_arrive_as_they_left(
    shapes: list[KvShape], dtype: torch.dtype, heads_first: bool, block_size: int
) -> None:
    source, target = (cache(shapes, dtype, block_size=block_size, heads_first=heads_first) for _ in range(2))
    before = [[tensor.clone() for tensor in layer] for layer in target.layers]
    memory = memoryview(bytearray(3 * layout_of(source).block_bytes))
    KvTransfer(source).read([7, 0, 4], memory)
    KvTransfer(target).write([1, 8, 3], memory, [0, 1, 2], 3)
    for ours, theirs, old in zip(target.layers, source.layers, before, strict=True):
        for to, of, was in zip(ours, theirs, old, strict=True):
            assert torch.equal(to[[1, 8, 3]], of[[7, 0, 4]])
            rest = [0, 2, 4, 5, 6, 7]
            assert torch.equal(to[rest], was[rest])


def test_of_what_came_only_the_blocks_that_are_missing_are_written() -> None:
    source, target = cache(SHAPES[1], torch.float32), cache(SHAPES[1], torch.float32)
    memory = memoryview(bytearray(3 * layout_of(source).block_bytes))
    KvTransfer(source).read([7, 0, 4], memory)
    KvTransfer(target).write([5, 6], memory, [2, 0], 3)
    for ours, theirs in zip(target.layers, source.layers, strict=True):
        assert torch.equal(ours[0][[5, 6]], theirs[0][[4, 7]])


def test_a_layout_tells_forms_apart_by_name() -> None:
    plain = layout_of(cache(SHAPES[1], torch.float16))
    assert plain.difference(layout_of(cache(SHAPES[1], torch.float16))) == ""
    assert plain.difference(layout_of(cache(SHAPES[1], torch.bfloat16))) == "dtype"
    assert plain.difference(layout_of(cache(SHAPES[1], torch.float16, heads_first=True))) == "heads_first"
    assert plain.difference(layout_of(cache(SHAPES[0], torch.float16))) == "shapes"
    assert plain.difference(layout_of(cache(SHAPES[1], torch.float16, block_size=8))) == "block_size"
    assert plain.digest != layout_of(cache(SHAPES[0], torch.float16)).digest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shapes", SHAPES, ids=["even", "odd", "latents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ends", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")], ids="-".join)
def test_blocks_arrive_between_cards_and_hosts_beside_steps(
    shapes: list[KvShape], dtype: torch.dtype, ends: tuple[str, str]
) -> None:
    source, target = (cache(shapes, dtype, on=on) for on in ends)
    steps = torch.cuda.Stream()
    transfers = [
        KvTransfer(one, steps if on == "cuda" else None) for one, on in zip((source, target), ends, strict=True)
    ]
    memory = memoryview(bytearray(3 * layout_of(source).block_bytes))
    for blocks in ([7, 0, 4], [2, 3, 8]):  # the second time what the first one wrote is on its way
        transfers[0].read(blocks, memory)
        transfers[1].write([5, 3], memory, [0, 2], 3)
        wanted = [blocks[0], blocks[2]]
        again = memoryview(bytearray(len(memory) // 3 * 2))
        transfers[1].read([5, 3], again)  # what was just written, without a wait in between
        expected = memoryview(bytearray(len(again)))
        transfers[0].read(wanted, expected)
        assert bytes(again) == bytes(expected)
        for ours, theirs in zip(target.layers, source.layers, strict=True):
            for to, of in zip(ours, theirs, strict=True):
                assert torch.equal(to[[5, 3]].cpu(), of[wanted].cpu())

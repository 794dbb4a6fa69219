"""An answer over fetched blocks is the one over computed blocks, token for token, with a real model."""

from __future__ import annotations

import os

import pytest
import torch

from model_svc.disagg.engine_end import EngineBlocks
from model_svc.disagg.orders import ReadBlocks, WriteBlocks
from model_svc.disagg.staging import Staging, open_memory
from model_svc.engine.engine import Engine
from model_svc.quant import native
from model_svc.runner.load import make_runner
from tests.model_svc.runner.test_with_engine import BLOCK, fresh_engine, request, run
from tests.model_svc.tiny import tiny_llama

PROMPT = [(7 * number) % 67 for number in range(41)]


def blocks_of(engine: Engine) -> EngineBlocks:
    runner = engine._runner
    assert runner.info.kv is not None
    descriptor = open_memory()
    made = EngineBlocks(engine.scheduler.roster, runner.blocks, Staging(descriptor, runner.info.kv.block_bytes))  # type: ignore[attr-defined]
    os.close(descriptor)
    return made


def move(source: Engine, target: Engine, names: bytes) -> int:
    """Carry blocks over as the two services do."""
    giving, taking = blocks_of(source), blocks_of(target)
    num_blocks = giving.obey(ReadBlocks(ticket=0, slot=1, names=names)).num_blocks
    taking._staging.blocks(2, num_blocks)[:] = giving._staging.blocks(1, num_blocks)
    return taking.obey(WriteBlocks(ticket=1, slot=2, names=names[: num_blocks * 16])).num_blocks


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [41, 40, 9, 5])
def test_fetched_blocks_give_the_tokens_of_computed_ones(dtype: torch.dtype, length: int, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = tiny_llama(device, dtype=dtype)
    asked = [request("r", PROMPT[:length], temperature=0.0)]

    def engine() -> Engine:
        return Engine(make_runner(model, dtype=dtype, num_blocks=64, block_size=BLOCK), token_bytes=lambda _: b"x")

    source, target = engine(), engine()
    expected = run(source, asked, at_once=False)
    again = run(source, asked, at_once=False)  # over its own cached blocks
    names = asked[0].prompt.block_hashes
    assert move(source, target, names) == length // BLOCK
    target.add(asked[0])
    chunks = []
    while target.has_work:
        chunks += target.step()
        target.events()
        target.check_invariants()
    assert chunks[0].num_cached_tokens == (length - 1) // BLOCK * BLOCK
    assert [token for chunk in chunks for token in chunk.token_ids] == again["r", 0] == expected["r", 0]


def test_blocks_may_be_fetched_while_others_answer_and_disturb_nobody() -> None:
    model = tiny_llama()
    source, target = fresh_engine(model), fresh_engine(model)
    asked = request("r", PROMPT, temperature=0.0)
    other = request("o", PROMPT[20:], temperature=0.0)
    expected = run(fresh_engine(model), [asked, other], at_once=False)
    run(source, [asked], at_once=False)
    target.add(other)
    chunks = target.step() + target.step()
    assert move(source, target, asked.prompt.block_hashes) == 10
    target.add(asked)
    while target.has_work:
        chunks += target.step()
        target.events()
        target.check_invariants()
    for name in ("r", "o"):
        assert [t for chunk in chunks if chunk.request_id == name for t in chunk.token_ids] == expected[name, 0]


@pytest.mark.skipif(not native.usable(), reason="native kernels are not built")
def test_blocks_of_the_native_runner_lie_heads_first_and_move_alike() -> None:
    model = tiny_llama(num_key_value_heads=2, head_dim=16)
    runner = make_runner(model, num_blocks=8, block_size=BLOCK, native_kernels=True)
    assert runner.info.kv is not None
    assert runner.info.kv.heads_first and runner.info.kv.dtype == "float16"
    runner.close()

"""Sequences with LoRA adapters in every runner: what each says is the same alone, in any company, and by any path."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from kernels import few_rows
from kernels.native.library import built
from kernels.native.tape import Tape
from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.layers.blocks import FewRows
from model_svc.runner.cpu_runner import CpuRunner
from model_svc.runner.load import make_runner
from model_svc.spec.ngram import NgramProposer
from model_svc.weights.adapter import AdapterCheckpoint
from tests.lora import ALL, write_adapter
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids
from tests.model_svc.tiny import TINY, VOCAB, tiny_llama
from wire import block_hash
from wire.errors import ModelNotFoundError
from wire.messages import Prompt, SamplingParams, pack_ids

PROMPTS = [[5, 9, 14, 3, 60, 22, 41], [7, 2], list(range(11, 28)), [66, 1], [5, 9, 14, 3, 60, 22, 41]]
WANTED = ["", "one", "two", "one", "two"]
Checkpoints = list[AdapterCheckpoint]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("adapters")
    shape = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    one = write_adapter(folder / "one", shape, targets=ALL, seed=1, spread=0.4)
    two = write_adapter(folder / "two", shape, targets=("q_proj", "up_proj"), seed=2, rank=20, spread=0.4)
    return [AdapterCheckpoint("one", one), AdapterCheckpoint("two", two)]


def _runner(checkpoints: Checkpoints, *, device: str = "cpu", **options: Any) -> Any:
    sizes: dict[str, Any] = {"num_blocks": 96, "block_size": 4, "max_num_seqs": 8}
    return make_runner(tiny_llama(device, adapters=checkpoints), **(sizes | options))


def _generate(runner: Runner, chosen: list[int], *, chunk: int = 1 << 30, fed: bool = True) -> dict[int, list[int]]:
    sequences = [Tracked(n, list(PROMPTS[n]), adapter=WANTED[n]) for n in chosen]
    return token_ids(RunnerDriver(runner).generate(sequences, 12, chunk=chunk, fed=fed))


@pytest.fixture(scope="module")
def alone(checkpoints: Checkpoints) -> dict[int, list[int]]:
    """What the exact runner says of each prompt alone."""
    found: dict[int, list[int]] = {}
    for n in range(len(PROMPTS)):
        found |= _generate(_runner(checkpoints), [n])
    assert found[0] != found[4]
    return found


FORMS: dict[str, dict[str, Any]] = {"eager": {}, "packed": {"packed": True}, "native": {"native_kernels": True}}


@pytest.mark.parametrize("chunk", [3, 1 << 30])
@pytest.mark.parametrize("form", FORMS)
def test_a_mixed_batch_says_what_each_says_alone(
    checkpoints: Checkpoints, alone: dict[int, list[int]], form: str, chunk: int
) -> None:
    if form == "native" and not built():
        pytest.skip("native kernels are not built")
    found = _generate(_runner(checkpoints, **FORMS[form]), [0, 1, 2, 3, 4], chunk=chunk, fed=form != "eager")
    assert found == alone


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("graphs", ["recorded", "launched"])
def test_a_gpu_says_the_same_recorded_or_not(
    checkpoints: Checkpoints, alone: dict[int, list[int]], graphs: str
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    runner = _runner(checkpoints, device="cuda", late=graphs == "launched")
    if graphs == "recorded":
        assert runner._recorded._adapted.all_made
    assert _generate(runner, [0, 1, 2, 3, 4], chunk=3) == alone
    assert _generate(runner, [0]) == {0: alone[0]}
    runner.close()


def _counted(function: Callable[..., Any], calls: list[None]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        calls.append(None)
        return function(*args, **named)

    return call


def test_fused_kernels_are_for_steps_without_adapters(
    checkpoints: Checkpoints, alone: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fused: list[None] = []
    monkeypatch.setattr(few_rows, "fits", lambda _, num_rows: num_rows <= few_rows.MAX_ROWS)
    monkeypatch.setattr(FewRows, "__call__", _counted(FewRows.__call__, fused))
    runner = _runner(checkpoints, packed=True)
    assert _generate(runner, [1, 0]) == {0: alone[0], 1: alone[1]}
    assert not fused
    assert _generate(runner, [0]) == {0: alone[0]}
    assert fused


@pytest.mark.skipif(not built(), reason="native kernels are not built")
def test_decode_steps_have_tapes_with_adapters_and_without(
    checkpoints: Checkpoints, alone: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[None] = []
    monkeypatch.setattr(Tape, "replay", _counted(Tape.replay, replayed))
    runner = _runner(checkpoints, native_kernels=True)
    assert isinstance(runner, CpuRunner)
    assert _generate(runner, [0]) == {0: alone[0]}
    count = len(replayed)
    assert count == 9  # of eleven steps of one token the first runs, and the second is recorded
    assert _generate(runner, [1]) == {1: alone[1]}
    assert len(replayed) == 2 * count
    assert _generate(runner, [0]) == {0: alone[0]}
    assert _generate(runner, [2]) == {2: alone[2]}
    assert len(replayed) == 4 * count + 4


@pytest.mark.parametrize("form", FORMS)
def test_an_engine_with_hits_chunks_drafts_and_preemption_mixes_nothing_up(checkpoints: Checkpoints, form: str) -> None:
    """The same prompts for each adapter, in a pool so small that answers are put back."""
    if form == "native" and not built():
        pytest.skip("native kernels are not built")
    draw = random.Random(4)
    prompts = [[draw.randrange(VOCAB) for _ in range(n)] for n in (13, 30, 21)]
    asked = [(name, ids) for ids in prompts for name in ("one", "", "two")]

    def answers(runner: Any, *, together: bool) -> tuple[dict[str, list[int]], Engine]:
        most = runner.info.max_drafts
        drafter = Drafter(NgramProposer(), max_length=3, max_drafts=most) if most else None
        engine = Engine(runner, token_bytes=lambda _: b"x", drafter=drafter)
        ids: dict[str, list[int]] = {}
        for n, (name, content) in enumerate(asked * 2):
            engine.add(_request(f"{name}-{n % len(asked)}/{n}", name, content))
            while engine.has_work and (not together or n == 2 * len(asked) - 1):
                for chunk in engine.step():
                    assert chunk.finish_reason != "error"
                    ids.setdefault(chunk.request_id, []).extend(chunk.token_ids)
                engine.events()
        return ids, engine

    sizes: dict[str, Any] = {"max_num_batched_tokens": 24, "max_num_seqs": 6, **FORMS[form]}
    wanted, _ = answers(_runner(checkpoints, **{**sizes, "num_blocks": 200}), together=False)
    found, engine = answers(_runner(checkpoints, num_blocks=24, max_drafts=8, **sizes), together=True)
    assert found == wanted
    assert engine.scheduler.roster.num_preemptions
    for at in range(0, len(asked), 3):
        assert len({tuple(wanted[f"{name}-{at + n}/{at + n}"]) for n, name in enumerate(("one", "", "two"))}) == 3


def _request(request_id: str, adapter: str, content: list[int]) -> EngineRequest:
    root = block_hash.root(b"k" * 32, model="m", block_size=4, adapter=adapter)
    prompt = Prompt(
        token_ids=pack_ids(content), num_tokens=len(content), block_root=root, block_size=4, max_tokens=14,
        block_hashes=b"".join(block_hash.chain(root, content, 4)),
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    return EngineRequest(request_id=request_id, prompt=prompt, adapter=adapter, sampling=sampling)


def test_an_adapter_that_is_not_here_is_refused(checkpoints: Checkpoints) -> None:
    engine = Engine(_runner(checkpoints), token_bytes=lambda _: b"x")
    with pytest.raises(ModelNotFoundError, match="'three'"):
        engine.add(_request("a", "three", [1, 2]))

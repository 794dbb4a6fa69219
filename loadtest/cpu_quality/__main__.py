"""How near the CPU's fast path comes to transformers in float32, beside llama.cpp, on the same GGUF file.

    python -m loadtest.cpu_quality MODEL_DIR [--llama-python PATH] [--tokens 48] [--text 1024]

transformers answers each prompt greedily; then each engine is led along that answer and says at every place what it
would have taken. Up to the first place where it differs that is its own greedy answer. Both counts are shown, and how
far apart transformers' two best logits were where an engine first chose another one; then the perplexity of the first
tokens of a text that stays as it is, the license. What transformers said is kept (truth.py).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.cpu_quality.engines import Answers, Taken, headrace
from loadtest.cpu_quality.truth import Truth, truth

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
TEXT = Path(__file__).parents[2] / "LICENSE"


def as_ids(model: Path) -> tuple[Answers, list[int]]:
    """Return the prompts and the text as ids, with what the tokenizer puts before them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in PROMPTS], tokenizer.encode(TEXT.read_text()).ids


def equal_tokens(true: Truth, engines: dict[str, Taken]) -> Table:
    """Show for each prompt: equal before the first difference / equal led along the answer; the margin there."""
    table = Table("prompt", *(f"{name}{what}" for name in engines for what in ("", ", margin")), box=None)
    sums = {name: [0, 0] for name in engines}
    for n, answer in enumerate(true.answers):
        cells = []
        for name, taken in engines.items():
            same = [mine == right for mine, right in zip(taken.tokens[n], answer, strict=True)]
            first = same.index(False) if False in same else len(same)
            cells += [f"{first} / {sum(same)}", f"{true.margins[n][first]:.3f}" if first < len(same) else ""]
            sums[name] = [sums[name][0] + first, sums[name][1] + sum(same)]
        table.add_row(repr(PROMPTS[n])[1:29], *cells)
    table.add_row("all", *(cell for first, led in sums.values() for cell in (f"{first} / {led}", "")))
    return table


def perplexities(losses: dict[str, list[float]]) -> Table:
    """Show each engine's perplexity; the first one is the truth."""
    table = Table("text", "cross entropy", "perplexity", "against float32", box=None)
    right = statistics.fmean(next(iter(losses.values())))
    for name, each in losses.items():
        mean = statistics.fmean(each)
        table.add_row(name, f"{mean:.4f}", f"{math.exp(mean):.4f}", f"{math.expm1(mean - right):+.2%}")
    return table


def main() -> None:
    """Ask transformers, then each engine, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--llama-python", default="")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--text", type=int, default=1024, help="tokens of the license")
    options = parser.parse_args()
    prompts, text = as_ids(options.model_dir)
    text = text[: options.text]
    true = truth(options.model_dir, prompts, options.tokens, text)
    engines = {"headrace": headrace(options.model_dir, prompts, true.answers, text)}
    if options.llama_python:
        run = subprocess.run(
            [options.llama_python, str(Path(__file__).with_name("engines.py")), str(options.model_dir)],
            input=json.dumps([prompts, true.answers, text]), capture_output=True, text=True, check=True,
        )  # fmt: skip
        engines["llama.cpp"] = Taken(*json.loads(run.stdout.splitlines()[-1]))
    console = Console(width=120)
    console.print(equal_tokens(true, engines))
    console.print(f"of {sum(map(len, true.answers))}: equal before the first difference / equal when led along")
    losses = {"float32": true.losses} | {name: taken.losses for name, taken in engines.items()}
    console.print(perplexities(losses))


if __name__ == "__main__":
    main()

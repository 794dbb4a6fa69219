"""What guesses are worth: the same answers with and without speculative decoding, engine and runner in this process.

    python -m loadtest.speculation MODEL_DIR [--streams 1,4,8,16] [--num-draft-tokens 7] [--rounds 3] [--device cpu]

Prompts that ask for what stands in them (quote, rename, extract, summarise) against open chat, greedy and sampled. With
and without take turns; the answers must be the same to the token. Prints tokens per second of decoding, how many of the
guesses came true, and tokens per step of a sequence. With `--threads 1 --processor-time` seconds are those of the
processor, which other work on the machine does not stretch much.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.runner.load import load_runner
from model_svc.spec.ngram import NgramProposer
from wire.messages import Prompt, SamplingParams, pack_ids
from wire.model_card import ModelCard

_TEXT = (
    "The harbour of Lisbon lies on the Tagus, some fifteen kilometres from the open sea. Ships of up to three hundred "
    "metres can moor at the terminal of Santa Apolonia, finished in 2017 for 79 million euros. In summer "
    "about forty ships a month call there; in winter it is fewer than ten. The old docks at Alcantara were turned into "
    "restaurants and bars, and a path for cyclists leads from there along the river to the tower of Belem. "
)
_CODE = (
    "def total(costs):\n    result = 0\n    for name, cost in costs.items():\n        if cost < 0:\n"
    "            raise ValueError(name)\n        result = result + cost\n    return round(result, 2)\n"
)
PROMPTS: dict[str, tuple[str, ...]] = {
    "quote": (f"Repeat the following text word for word:\n\n{_TEXT}",),
    "rename": (f"Write this function again, with `result` renamed to `total`:\n\n```python\n{_CODE}```",),
    "extract": (f"List all numbers in this text, each with the sentence it stands in:\n\n{_TEXT}",),
    "summarise": (f"Summarise this text in three sentences:\n\n{_TEXT}",),
    "chat": (
        "What should I think about before I adopt a dog?",
        "Write a short story about a lighthouse keeper who finds a letter.",
        "Why is the sky blue?",
        "Give me some advice for a job interview.",
    ),
}
_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Measured:
    """One kind of prompt with or without guesses: tokens per second of each round, and what became of the guesses."""

    rates: list[float] = field(default_factory=list)
    num_guesses: int = 0
    num_accepted: int = 0
    num_draws: int = 0


class Bench:
    """One runner, an engine for each measurement."""

    def __init__(self, model: Path, length: int, max_tokens: int, clock: Callable[[], float], **options: Any) -> None:
        self._clock = clock
        self._runner: Runner = load_runner(model, max_drafts=64, **options)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._eos_ids = ModelCard.load(model).eos_token_ids
        self._length = length
        self._max_tokens = max_tokens
        self._num_requests = 0

    def measure(
        self, texts: Iterable[str], sampling: dict[str, Any], *, guesses: bool, into: Measured
    ) -> list[list[int]]:
        """Answer the prompts together, note the rate, and return the ids."""
        drafter = None
        if guesses:
            drafter = Drafter(NgramProposer(), max_length=self._length, max_drafts=self._runner.info.max_drafts)
        engine = Engine(self._runner, token_bytes=lambda _: b"x", eos_token_ids=self._eos_ids, drafter=drafter)
        answers: dict[str, list[int]] = {}
        for n, text in enumerate(texts):
            name = f"r{self._num_requests}"
            self._num_requests += 1
            answers[name] = []
            engine.add(self._request(name, text, SamplingParams(seed=n, **sampling)))
        began, num_first = 0.0, 0
        while engine.has_work:
            for chunk in engine.step():
                answers[chunk.request_id] += chunk.token_ids
            engine.events()
            if not began and all(answers.values()):
                began, num_first = self._clock(), sum(map(len, answers.values()))
        into.rates.append((sum(map(len, answers.values())) - num_first) / (self._clock() - began))
        load = engine.load()
        into.num_guesses += load.num_draft_tokens
        into.num_accepted += load.num_accepted_tokens
        into.num_draws += load.num_drafts
        return list(answers.values())

    def _request(self, name: str, text: str, sampling: SamplingParams) -> EngineRequest:
        ids = self._tokenizer.encode(_TURN.format(text)).ids
        prompt = Prompt(token_ids=pack_ids(ids), num_tokens=len(ids), max_tokens=self._max_tokens)
        return EngineRequest(request_id=name, prompt=prompt, sampling=sampling)


def run(bench: Bench, streams: int, rounds: int, kind: str, table: Table) -> None:
    """Measure a kind of prompts at a number of streams."""
    texts = PROMPTS[kind]
    for words, sampling in (("greedy", {"temperature": 0.0}), ("t 0.7", {"temperature": 0.7, "top_p": 0.95})):
        asked = [texts[n % len(texts)] for n in range(streams)] if streams > 1 else [texts[0]]
        plain, drafted = Measured(), Measured()
        for _ in range(rounds):
            same = bench.measure(asked, sampling, guesses=False, into=plain) == bench.measure(
                asked, sampling, guesses=True, into=drafted
            )
            if not same:
                raise SystemExit(f"{kind}, {words}: guesses changed an answer")
        without, with_guesses = statistics.median(plain.rates), statistics.median(drafted.rates)
        table.add_row(
            str(streams), kind, words, f"{without:.0f}", f"{with_guesses:.0f}", f"{with_guesses / without:.2f}",
            f"{drafted.num_accepted / max(1, drafted.num_guesses):.0%} of {drafted.num_guesses // rounds}",
            f"{1 + drafted.num_accepted / max(1, drafted.num_draws):.1f}",
        )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--num-draft-tokens", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(PROMPTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--processor-time", action="store_true")
    args = parser.parse_args()
    clock = time.process_time if args.processor_time else time.perf_counter
    bench = Bench(
        args.model, args.num_draft_tokens, args.max_tokens, clock, device=args.device, threads=args.threads,
        dtype="auto",
        max_num_seqs=32, num_blocks=1024, max_model_len=2048,
    )  # fmt: skip
    console = Console(width=120)
    table = Table("streams", "prompt", "draws", "tok/s", "with guesses", "ratio", "came true", "tokens a checked step")
    bench.measure(PROMPTS["chat"], {"temperature": 0.0}, guesses=True, into=Measured())  # records the usual steps
    for streams in map(int, args.streams.split(",")):
        for kind in args.kinds.split(","):
            console.print(f"{streams} streams, {kind}")
            run(bench, streams, args.rounds, kind, table)
    console.print(table)


if __name__ == "__main__":
    main()

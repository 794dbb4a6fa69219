"""The engine on a CPU beside llama.cpp: the same GGUF file, interleaved rounds, medians and best steps.

    python -m loadtest.cpu MODEL_DIR [--llama-python PATH] [--threads 2] [--rounds 5] [--busy] [--against Q4_0]
    python -m loadtest.cpu --random llama-1b Q4_K ...

Two child processes wait for orders and measure in turn, so that a disturbed minute hurts both. `--llama-python` is an
interpreter whose environment has llama-cpp-python, built for the machine: CMAKE_ARGS=-DGGML_NATIVE=ON, or flag by flag
without AMX where its AMX buffers crash (then its other repacked forms are used). `--busy` measures ours a second time
with one core occupied, to be held against llama.cpp undisturbed: its threads spin, and steps beside another job take
seconds. `--against` gives llama.cpp the file requantised to a format that it likes better; `--random` makes a model of
random weights. A step is measured as its caller sees it: plan in, tokens out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from loadtest.cpu_models import random_model, requantized


class Test(NamedTuple):
    """`streams` sequences that hold `context` tokens take `tokens` each in a step, for so many steps."""

    name: str
    streams: int
    context: int
    tokens: int
    steps: int


OURS = "headrace"
TESTS = (
    Test("decode, 1 stream", 1, 128, 1, 24),
    Test("decode, 8 streams", 8, 128, 1, 12),
    Test("decode, 32 streams", 32, 128, 1, 6),
    Test("prefill 512", 1, 0, 512, 2),
)


class Child:
    """A process that measures one engine on demand."""

    def __init__(self, python: str, engine: str, arguments: list[str]) -> None:
        command = [python, str(Path(__file__).with_name("cpu_child.py")), engine, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def measure(self, test: Test) -> list[float]:
        """Return the seconds of each step."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(test) + "\n")
        self._process.stdin.flush()
        steps: list[float] = self._answer()
        return steps

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)["answer"]
        raise SystemExit("a measuring process ended early")


@contextmanager
def occupied_core() -> Iterator[None]:
    """Keep a core at work inside."""
    # Not by a fork: it would hold our end of the children's pipes, and they would wait for orders for ever.
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def rounds(children: dict[str, Child], count: int, *, busy: bool) -> dict[str, dict[str, list[float]]]:
    """Measure every test with every engine `count` times, engines in turn; `busy`: ours a second time beside a job."""
    found: dict[str, dict[str, list[float]]] = {test.name: {} for test in TESTS}
    for _ in range(count):
        for test in TESTS:
            for name, child in children.items():
                found[test.name].setdefault(name, []).extend(child.measure(test))
                if busy and name == OURS:
                    with occupied_core():
                        found[test.name].setdefault(f"{name}, a core busy", []).extend(child.measure(test))
    return found


def table(found: dict[str, dict[str, list[float]]]) -> Table:
    """Show tokens per second over all streams, by median and by best step, and the ratio of both engines."""
    shown = Table("test", "engine", "tok/s, median", "tok/s, best", "ratio, median", "ratio, best", box=None)
    views: tuple[Callable[[list[float]], float], ...] = (statistics.median, min)
    for test in TESTS:
        engines = found[test.name]
        for name, seconds in engines.items():
            speeds = [test.streams * test.tokens / view(seconds) for view in views]
            ratios = [view(engines["llama.cpp"]) / view(seconds) if "llama.cpp" in engines else 0.0 for view in views]
            shown.add_row(test.name, name, *(f"{speed:.0f}" for speed in speeds), *(f"{ratio:.2f}" for ratio in ratios))
    return shown


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path, nargs="?")
    parser.add_argument("--random", nargs=2, metavar=("SHAPE", "FORMAT"))
    parser.add_argument("--against", default="", metavar="FORMAT")
    parser.add_argument("--llama-python", default="")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    console = Console(width=140)
    if not (options.model_dir or options.random):
        parser.error("name a model directory, or --random")
    model = random_model(*options.random) if options.random else options.model_dir
    arguments = [str(model), options.threads]
    started = time.perf_counter()
    children = {OURS: Child(sys.executable, "headrace", arguments)}
    console.print(f"headrace: {children[OURS].about}, ready after {time.perf_counter() - started:.1f} s")
    if options.llama_python:
        other = requantized(model, options.against, options.llama_python) if options.against else model
        children["llama.cpp"] = Child(options.llama_python, "llama.cpp", [str(other), options.threads])
        console.print(f"llama.cpp: {children['llama.cpp'].about}")
    console.print(table(rounds(children, options.rounds, busy=options.busy)))
    for child in children.values():
        child.close()


if __name__ == "__main__":
    main()

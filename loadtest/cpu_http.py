"""What the ring costs on a CPU: time between tokens over HTTP beside the engine's own step, in one run.

    python -m loadtest.cpu_http MODEL_DIR [--threads 2] [--rounds 3]

The engine is measured in a process of its own (loadtest.cpu), then `headrace up` of the same model answers as many
users at once; both in turn, and idle meanwhile, both without guesses (speculation). The share is engine step / time per
output token, each by median and by best. Counted is the time in which all users have their first token and none the
last: prompts of those who come at once are not the ring's cost. Tokens are counted by the usage that each event tells,
for several may come in one. Below, processor time of each process a step in that time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import anyio

from loadtest.cpu import Child, Test
from loadtest.house import house
from loadtest.processor import Spent, processes, spent
from loadtest.streams import Stream, read_streams
from loadtest.workload import chat_bodies

USERS = (1, 16)
_TOKENS = 256
_CONTEXT = 192  # about that of the middle of such an answer to 40 words
_STEPS = 32  # of the engine alone, in a round
_REST_S = 3.0  # in which the server uses its idle time: the engine alone is measured behind it


def pace(streams: list[Stream]) -> tuple[float, float, float]:
    """Return the median seconds a token while all streams were at it, and when that began and ended."""
    begin = max(stream.texts[0] for stream in streams)
    end = min(stream.texts[-1] for stream in streams)
    return statistics.median(stream.pace_s(begin, end) for stream in streams), begin, end


class Round:
    """What rounds of one number of users brought: seconds of a step, and of each process a step, in milliseconds."""

    def __init__(self, users: int) -> None:
        self.users = users
        self.steps: list[float] = []
        self.gaps: list[float] = []
        self.used: dict[str, list[float]] = {}

    def alone(self, engine: Child) -> None:
        """Measure the engine."""
        self.steps.append(statistics.median(engine.measure(Test("", self.users, _CONTEXT, 1, _STEPS))))

    def over_http(self, url: str, model: str, seed: int) -> None:
        """Measure so many users who ask at once."""
        made = chat_bodies(model, seed=seed, input_words=(40, 40), output_tokens=(_TOKENS, _TOKENS))
        told = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        bodies = [{**next(made), **told} for _ in range(self.users)]
        groups, looks = processes(), list[dict[str, Spent]]()
        groups.pop("engine alone", None)  # which waits for its turn

        def look() -> None:
            looks.append({name: spent(group) for name, group in groups.items()})

        read = partial(read_streams, int(url.rpartition(":")[2]), bodies, on_full=look, on_end=look)
        streams = anyio.run(read, backend_options={"use_uvloop": True})
        if not all(stream.done for stream in streams):
            raise SystemExit("a stream ended early")
        gap, begin, end = pace(streams)
        self.gaps.append(gap)
        for name in groups:
            used = looks[1][name] - looks[0][name]
            self.used.setdefault(name, []).append(1e3 * used.cpu_s * gap / (end - begin))

    def tell(self) -> str:
        """Return the lines about these users."""
        lines = []
        for name, view in (("median", statistics.median), ("best", min)):
            step, gap = view(self.steps), view(self.gaps)
            rates = f"engine {self.users / step:6.0f} tok/s, over HTTP {self.users / gap:6.0f}, share {step / gap:.2f}"
            lines.append(f"{self.users:2} streams, {name:6}: {rates}")
        used = ", ".join(f"{name} {min(times):.2f}" for name, times in self.used.items())
        return "\n".join([*lines, f"   processor time a step, ms, least of all rounds: {used}\n"])


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ |= {"HEADRACE_SPECULATE": "off", "HEADRACE_THREADS": options.threads}
    engine = Child(sys.executable, "headrace", [str(options.model_dir), options.threads])
    found = [Round(users) for users in USERS]
    with house(options.model_dir) as (url, _):
        for seed in range(-1, options.rounds):
            for one in [Round(users) for users in USERS] if seed < 0 else found:
                time.sleep(_REST_S)
                one.alone(engine)
                one.over_http(url, options.model_dir.name, seed)
    engine.close()
    for one in found:
        sys.stdout.write(one.tell())


if __name__ == "__main__":
    main()

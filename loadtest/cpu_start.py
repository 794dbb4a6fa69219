"""A CPU engine's start and its memory at rest: each in a process of its own, as a newcomer meets it.

    python -m loadtest.cpu_start MODEL_DIR [--rounds 3]

Start: process start to the first token of a 60-token prompt, by part: imports, load, first step. Memory:
resident set once loaded, beside what torch alone takes, the weights as packed, and after a first prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_TORCH = "import json, psutil, torch; print(json.dumps({'rss': psutil.Process().memory_info().rss}))"


def _measure(model: Path) -> dict[str, float]:
    """Load, run a prompt, and say when and with how much memory; times are of the wall clock, as of an epoch."""
    import psutil

    from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
    from model_svc.runner.load import load_runner
    from wire.messages import SamplingParams, pack_ids

    process = psutil.Process()
    found = {"imported": time.time()}
    runner = load_runner(model, dtype="auto", max_num_seqs=16)
    found |= {"loaded": time.time(), "rss": process.memory_info().rss, "weights": runner.info.weight_bytes}
    ids = pack_ids([n * 104729 % 40000 + 100 for n in range(60)])
    size = runner.info.block_size
    share = SequenceStep(
        slot=0, start=0, num_tokens=60, token_ids=ids, new_blocks=tuple(range(-(-64 // size))),
        new=NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=ids),
    )  # fmt: skip
    runner.collect(runner.submit(StepPlan(step=1, sequences=(share,))))
    return found | {"first_token": time.time(), "rss_used": process.memory_info().rss}


def _run(arguments: list[str]) -> tuple[float, dict[str, Any]]:
    started = time.time()
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return started, found


def main() -> None:
    """Measure in fresh processes and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.stdout.write(json.dumps(_measure(options.model_dir)) + "\n")
        return
    runs = [_run(["-m", "loadtest.cpu_start", str(options.model_dir), "--child"]) for _ in range(options.rounds)]
    times = {name: [found[name] - started for started, found in runs] for name in ("imported", "loaded", "first_token")}
    for name, seconds in times.items():
        sys.stdout.write(f"{name:12} {statistics.median(seconds):5.2f} s (best {min(seconds):.2f}) after the start\n")
    mib = 1 << 20
    torch_alone = _run(["-c", _TORCH])[1]["rss"]
    found = runs[-1][1]
    beyond = found["rss"] - torch_alone - found["weights"]
    sys.stdout.write(
        f"resident once loaded {found['rss'] / mib:.0f} MiB = torch alone {torch_alone / mib:.0f} + weights "
        f"{found['weights'] / mib:.0f} + {beyond / mib:.0f}; after a prompt {found['rss_used'] / mib:.0f} MiB\n"
    )


if __name__ == "__main__":
    main()

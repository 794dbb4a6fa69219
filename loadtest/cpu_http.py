"""What the ring costs on a CPU: time between tokens over HTTP beside the engine's own step, in one run.

    python -m loadtest.cpu_http MODEL_DIR [--threads 2] [--rounds 3]

The engine is measured in a process of its own (loadtest.cpu), then `headrace up` of the same model answers as many
users at once; both in turn, and idle meanwhile. The share is engine step / time per output token (TPOT), each by median
and by best.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx

from loadtest import bench
from loadtest.cpu import Child, Test

USERS = (1, 16)
_TOKENS = 256  # so many that the prompts of those who come at once, 60 tokens each, weigh little in their answers' time
_CONTEXT = 192  # about that of the middle of such an answer to 40 words
_START_S = 60.0


@contextlib.contextmanager
def server(model: Path) -> Iterator[tuple[str, str]]:
    """Run `headrace up` on a free port; yields its address once it answers, and its state directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "headrace", "up", "--port", str(port), "--state-dir", state]
        process = subprocess.Popen(
            [*command, "--model-dir", str(model.parent), "--model", model.name], stdout=subprocess.DEVNULL
        )
        try:
            _wait(url)
            yield url, state
        finally:
            process.terminate()
            process.wait()


def _wait(url: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/v1/models").json().get("data"):
                return
        time.sleep(0.2)
    raise SystemExit(f"the server did not come up within {_START_S:.0f} s")


def over_http(url: str, users: int) -> float:
    """Return the median seconds per output token when so many users ask at once."""
    flags = ["--url", url, "--concurrency", str(users), "--requests", str(max(4, users)), "--warmup", "2"]
    asked = bench.parser().parse_args([*flags, "--output-tokens", str(_TOKENS)])
    figures = anyio.run(bench.run, asked, backend_options={"use_uvloop": True})
    if figures["failed"]:
        raise SystemExit(f"requests failed: {figures['errors']}")
    return float(figures["median_tpot_ms"]) / 1000


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engine = Child(sys.executable, "headrace", [str(options.model_dir), options.threads])
    steps: dict[int, list[float]] = {users: [] for users in USERS}
    gaps: dict[int, list[float]] = {users: [] for users in USERS}
    with server(options.model_dir) as (url, _):
        for _ in range(options.rounds):
            for users in USERS:
                steps[users].append(statistics.median(engine.measure(Test("", users, _CONTEXT, 1, 32))))
                gaps[users].append(over_http(url, users))
    engine.close()
    for users in USERS:
        views = [
            (name, view(steps[users]), view(gaps[users]))
            for name, view in (("median", statistics.median), ("best", min))
        ]
        for name, step, gap in views:
            sys.stdout.write(
                f"{users:2} streams, {name:6}: engine {users / step:6.0f} tok/s, over HTTP {users / gap:6.0f}, "
                f"share {step / gap:.2f}\n"
            )


if __name__ == "__main__":
    main()

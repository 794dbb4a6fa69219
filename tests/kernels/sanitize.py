"""Run the compiled kernel tests under NVIDIA's compute-sanitizer: `make sanitize-gpu`, or

    python -m tests.kernels.sanitize [--tools memcheck,racecheck] [--jobs 4] [FILE[:EXPRESSION] ...]

A tool that finds something, and a test that fails, make it end with 1. torch's cache of device memory is off, so that a
step outside a tensor is outside an allocation. An expression is pytest's `-k`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
# Each a process of its own; the slowest file is cut up.
PARTS = (
    "test_paged_attention.py:long_prefills and 64",
    "test_paged_attention.py:long_prefills and 128",
    "test_paged_attention.py:mixed_batches",
    "test_paged_attention.py:group_size or windows_soft",
    "test_paged_attention.py:not long_prefills and not mixed_batches and not group_size and not windows_soft",
    "test_fixed_linear.py",
    "test_gated_linear.py",
    "test_few_rows.py",
    "test_few_rows_attention.py",
    "test_norm_heads.py",
    "test_expert_choice.py",
    "test_sample.py",
    "test_penalties.py",
    "test_step_inputs.py",
)
# What a tool cannot judge. Racecheck reports the words through which Triton hands the arguments of `warp_specialize` to
# the other warps (at the kernel's first line and where it branches to them, nowhere in what they do).
LEFT_OUT = {"racecheck": (":long_prefills", "test_gated_linear.py")}
TOOLS = {
    "memcheck": (),
    "racecheck": ("--racecheck-report", "hazard"),
    "synccheck": (),
    "initcheck": (),
}


def sanitizer() -> str | None:
    """Return the program's path: CUDA's own folder is not always on the PATH."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(home / "bin"))


def say(text: str) -> None:
    """Print at once: a run takes minutes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check(program: str, tool: str, part: str, timeout_s: float) -> bool:
    """Run a part under a tool, print one line about it, and all that was said when it did not pass."""
    file, _, expression = part.partition(":")
    command = [
        program, "--tool", tool, *TOOLS[tool], "--error-exitcode", "86", "--target-processes", "application-only",
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--confcutdir={HERE}",
        "-o", "filterwarnings=default", str(HERE / file), *(("-k", expression) if expression else ()),
    ]  # fmt: skip
    began = time.monotonic()
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = -1, f"{error.stdout or b''!r} was not done after {timeout_s:.0f} s"
    took = time.monotonic() - began
    tests = re.findall(r"\d+ (?:passed|failed)[^=\n]*", said)
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", said)
    outcome = "clean" if code == 0 else f"FAILED ({code})"
    say(f"{tool} {part}: {outcome}; {'; '.join([*tests[-1:], *found])}; {took:.0f} s")
    if code:
        places = Counter(re.findall(r"at (\S+?)\+0x[0-9a-f]+ in (\S+)", said))
        for (kernel, line), count in places.most_common(20):
            say(f"    {count:6} times in {kernel}, {line}")
        say(said[-3000:])
    return code == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default="memcheck,racecheck", help=f"with commas: {', '.join(TOOLS)}")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each part")
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="FILE[:EXPRESSION]")
    args = parser.parse_args(argv)
    program = sanitizer()
    if program is None:
        say("compute-sanitizer is not here; it comes with the CUDA toolkit")
        return 2
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = [
            pool.submit(check, program, tool, part, args.timeout)
            for tool in args.tools.split(",")
            for part in args.parts
            if args.parts is not PARTS or not any(name in part for name in LEFT_OUT.get(tool, ()))
        ]
        clean = [run.result() for run in runs]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())

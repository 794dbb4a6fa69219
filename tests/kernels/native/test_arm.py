"""The ARM builds on a machine that is none: cross-compiled by Zig, run by an emulator; both give the same bits."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.native import build

_EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
_ZIG_PYTHON = os.environ.get("HEADRACE_ZIG_PYTHON", sys.executable)  # whose environment has `ziglang`
_HAS_ZIG = sys.executable != _ZIG_PYTHON or importlib.util.find_spec("ziglang") is not None


@pytest.mark.slow
@pytest.mark.skipif(not _HAS_ZIG or _EMULATOR is None, reason="needs the package ziglang and qemu-user")
def test_neon_computes_the_bits_of_plain_c(tmp_path: Path) -> None:
    results = {}
    for name, flags in build.variants("aarch64").items():
        program = tmp_path / name
        command = [_ZIG_PYTHON, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static", "-mcpu=baseline"]
        sources = [str(Path(__file__).with_name("selftest.c")), *map(str, sorted(build.SOURCES.glob("*.c")))]
        fixed = ["-std=gnu11", "-O1", "-ffp-contract=off", f"-I{build.SOURCES}"]
        spelled = build.spelled([*command, *flags])
        subprocess.run([*spelled, *fixed, *sources, "-o", str(program), "-lm", "-lpthread"], check=True)
        run = subprocess.run([str(_EMULATOR), str(program)], check=True, capture_output=True, text=True)
        *results[name], isa = run.stdout.splitlines()
        assert isa == name
    assert len(results["neon"]) > 15
    assert results["neon"] == results["generic"]

"""Compile the C kernels, once for each instruction set of this architecture: `python -m kernels.native.build`.

Installing does this; nothing is compiled at start. It needs only the standard library and a C compiler: $CC, `cc`, or
the one that the package `ziglang` carries.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SOURCES, OUTPUT = HERE / "src", HERE / "lib"

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
# GCC's -O3 takes the small vectors of plain C apart again: half the speed, four times as long to compile.
_GENERIC = ("-O2",)
# Name of an instruction set -> flags; each is built from the same sources.
_X86 = {
    "generic": _GENERIC,
    "avx2": _AVX2,
    "avx2vnni": (*_AVX2, "-mavxvnni"),
    "avx512vnni": (*_AVX2, *_AVX512),
    "amx": (*_AVX2, *_AVX512, "-mamx-tile", "-mamx-int8"),
}
_ARM: dict[str, tuple[str, ...]] = {"generic": _GENERIC, "neon": ("-march=armv8.2-a+dotprod",)}
_ZIG = {"-march=armv8.2-a+dotprod": "-mcpu=baseline+dotprod"}  # which it spells in its own way
# No contraction of products and sums: a row's bits must not depend on how the compiler unrolled the rows beside it.
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")


class BuildError(RuntimeError):
    """The kernels could not be compiled; the message says why."""


def variants(machine: str) -> dict[str, tuple[str, ...]]:
    """Return what to build for an architecture, as `platform.machine()` calls it."""
    if machine.lower() in ("x86_64", "amd64"):
        return _X86
    return _ARM if machine.lower() in ("aarch64", "arm64") else {"generic": _GENERIC}


def sources_id() -> str:
    """Return a name for the sources as they are; a library carries that of the sources it was built from."""
    sources = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        sources.update(path.read_bytes())
    return sources.hexdigest()[:16]


def compiler() -> list[str] | None:
    """Return the command of a C compiler, None if there is none."""
    named = os.environ.get("CC", "").split()
    if named:
        return named
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found:
        return [found]
    # Zig compiles for this very processor unless told otherwise; `generic` must run on any.
    zig = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
    return zig if importlib.util.find_spec("ziglang") else None


def build(output: Path = OUTPUT, *, only: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> list[str]:
    """Compile into `output` and return the names of what was built. Raises BuildError if nothing could be."""
    command = compiler()
    if command is None:
        raise BuildError("no C compiler: install one, or the package `ziglang`, and install Headrace again")
    output.mkdir(parents=True, exist_ok=True)
    wanted = {name: found for name, found in variants(platform.machine()).items() if not only or name in only}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = dict(
            zip(
                wanted, pool.map(lambda name: _compile(command, name, wanted[name], output, flags), wanted), strict=True
            )
        )
    built = [name for name, fault in results.items() if not fault]
    if not built:
        raise BuildError("\n".join(results.values()))
    return built


def spelled(command: list[str]) -> list[str]:
    """Return a command with its flags as its compiler knows them."""
    return [_ZIG.get(word, word) for word in command] if "ziglang" in command else command


def _compile(command: list[str], name: str, isa: tuple[str, ...], output: Path, extra: tuple[str, ...]) -> str:
    """Compile one variant beside its place and move it there, so that a running process keeps the file it mapped."""
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    part = output / f".{name}.{os.getpid()}"
    named = f'-DHR_SOURCES="{sources_id()}"'
    run = subprocess.run(
        [*spelled([*command, *_FLAGS, *isa]), named, *extra, *sources, "-o", str(part), "-lm", "-lpthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        part.unlink(missing_ok=True)
        return f"{name}: {run.stderr.strip()[-500:]}"
    part.replace(output / f"{name}.so")
    return ""


if __name__ == "__main__":
    print(f"built {', '.join(build())} in {OUTPUT}")  # noqa: T201

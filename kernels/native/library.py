"""Find the compiled kernels and load the build for the best instruction set that this machine has."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import psutil

from kernels.native.build import OUTPUT, sources_id

logger = logging.getLogger(__name__)

# Best first, with the bits of `hr_machine` that each needs.
_NEEDS = {"amx": 8, "avx512vnni": 4, "avx2vnni": 2, "avx2": 1, "neon": 16, "generic": 0}


class Library:
    """The compiled kernels of one instruction set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        handle = ctypes.CDLL(str(path))
        self.run = handle.hr_run
        self.run.argtypes, self.run.restype = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int), None
        self.run_at = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)(("hr_run", handle))
        self.tiles_bytes = handle.hr_tiles_bytes
        self.tiles_bytes.argtypes, self.tiles_bytes.restype = (ctypes.c_int, *(ctypes.c_int64,) * 2), ctypes.c_int64
        self.pack = handle.hr_pack
        self.pack.argtypes = (ctypes.c_int, ctypes.c_void_p, *(ctypes.c_int64,) * 4, ctypes.c_void_p)
        self.pack.restype = None
        self.op_bytes = handle.hr_op_bytes
        self.op_bytes.restype = ctypes.c_int64
        self.machine: int = handle.hr_machine()  # also asks Linux for AMX's registers, where the machine has them
        handle.hr_isa.restype = ctypes.c_char_p
        self.isa: str = handle.hr_isa().decode()
        handle.hr_sources.restype = ctypes.c_char_p
        self.sources: str = handle.hr_sources().decode()


_chosen: Library | None = None
_threads = 0


@lru_cache
def available(folder: Path = OUTPUT) -> tuple[str, ...]:
    """Return the instruction sets that are built, from the sources as they are, and that this machine runs, best first.

    A library of other sources may read our records wrongly, and then the process is lost.
    """
    built = [name for name in _NEEDS if (folder / f"{name}.so").exists()]
    if not built:
        return ()
    try:  # any machine may load any build: only calling a kernel of it needs its instructions
        any_build = Library(folder / f"{built[-1]}.so")
    except OSError:
        return ()
    except AttributeError:  # it lacks a function that we know
        any_build = None
    if any_build is None or any_build.sources != sources_id():
        logger.warning("native kernels were built from other sources: run `python -m kernels.native.build`")
        return ()
    return tuple(name for name in built if not _NEEDS[name] or any_build.machine & _NEEDS[name])


def built() -> bool:
    """Tell whether there are native kernels for this machine."""
    return bool(available())


def library() -> Library:
    """Return the library in use. Raises RuntimeError where none is built."""
    global _chosen
    if _chosen is None:
        if not built():
            raise RuntimeError("native kernels are not built: run `python -m kernels.native.build`")
        _chosen = Library(OUTPUT / f"{available()[0]}.so")
    return _chosen


@contextmanager
def using(name: str, folder: Path = OUTPUT) -> Iterator[Library]:
    """Run native kernels of another instruction set inside (tests and comparisons)."""
    global _chosen
    before, _chosen = _chosen, Library(folder / f"{name}.so")
    try:
        yield _chosen
    finally:
        _chosen = before


def set_threads(count: int | None) -> None:
    """Set how many threads native kernels use; None: one for each core that this process may run on."""
    global _threads
    _threads = count or cores()


def threads() -> int:
    """Return how many threads native kernels use."""
    if not _threads:
        set_threads(None)
    return _threads


def cores() -> int:
    """Return the number of physical cores within reach: a second thread on a core only disturbs the first."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))

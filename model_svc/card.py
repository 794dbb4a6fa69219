"""The GPU's driver, woken while Python imports torch: neither waits for the other.

It takes 0.1 s where the driver stays loaded, and seconds where no daemon keeps it so. Whatever goes wrong here torch
meets again and tells better.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

_DRIVER = "libcuda.so.1"


@contextmanager
def waking(device: str, load: Callable[[str], Any] = ctypes.CDLL) -> Iterator[None]:
    """Make the context of a device (`cuda` or `cuda:N`; no other is woken) beside what the block does."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        yield
        return
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does before it wakes the driver
    with ThreadPoolExecutor(1, thread_name_prefix="card") as threads:
        threads.submit(_wake, int(index or 0), load)
        yield


def _wake(index: int, load: Callable[[str], Any]) -> None:
    """Retain the primary context, which everybody in this process shares; calls leave the interpreter's lock."""
    driver = load(_DRIVER)
    number, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(number), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)

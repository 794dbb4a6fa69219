"""What a start spends its time on, by part, in this process: it is reported when the model is ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

seconds: dict[str, float] = {}


@contextmanager
def part(name: str) -> Iterator[None]:
    """Add the time inside to a part of the start."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began


def told() -> str:
    """Return all parts as one line."""
    return ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())

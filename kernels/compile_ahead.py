"""Compiles what a run would launch, many kernels at a time, and launches nothing.

Compiled one by one, as they are met, the kernels of a model take half a minute at the very first start; most of it is
spent outside of Python, so threads share it. Later starts find everything in Triton's cache, and then going through all
that might be launched costs three seconds for nothing: so a note in the cache says what has been compiled.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kernels.language import INTERPRETED, TRITON_INSTALLED


def note_for(*what: object) -> Path | None:
    """Return where it is noted that everything for `what` is compiled; None where nothing is ever compiled.

    The name changes with the kernels, with Triton and torch, with the card, and with `what`.
    """
    if not TRITON_INSTALLED or INTERPRETED:
        return None
    import triton

    card = (torch.cuda.get_device_name(), torch.cuda.get_device_capability()) if torch.cuda.is_available() else None
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    name = hashlib.blake2b(digest_size=16)
    for part in (*sources, *(repr(item).encode() for item in (triton.__version__, torch.__version__, card, *what))):
        name.update(len(part).to_bytes(8, "little") + part)
    return Path(triton.knobs.cache.dir) / f"compiled-{name.hexdigest()}"


def write_note(note: Path | None) -> None:
    """Note that everything is compiled; where that cannot be written, the next start looks again."""
    if note is not None:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
        except OSError:
            return


@contextmanager
def compile_ahead(num_threads: int | None = None) -> Iterator[None]:
    """Inside, launches of Triton kernels only compile; on leaving, all of them are compiled.

    Other operations run, on whatever the launches would have written: results are without meaning. Does nothing where
    Triton interprets.
    """
    if not TRITON_INSTALLED or INTERPRETED:
        yield
        return
    from triton.runtime._async_compile import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def only_compile(self: Any, *args: Any, **options: Any) -> Any:
        return launch(self, *args, **{**options, "warmup": True})

    threads = ThreadPoolExecutor(num_threads or os.cpu_count(), thread_name_prefix="compile")
    with threads, AsyncCompileMode(threads):
        JITFunction.run = only_compile
        try:
            yield
        finally:
            JITFunction.run = launch

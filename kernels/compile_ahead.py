"""Compiles what a run would launch, many kernels at a time, and launches nothing.

Compiled one by one, as they are met, the kernels of a model take half a minute at the very first start; most of it is
spent outside of Python, so threads share it. Later starts find everything in Triton's cache.
"""

# mypy: disable-error-code="no-untyped-def"
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kernels.language import INTERPRETED, TRITON_INSTALLED


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

    def only_compile(self, *args, grid, warmup, **options):
        return launch(self, *args, grid=grid, warmup=True, **options)

    threads = ThreadPoolExecutor(num_threads or os.cpu_count(), thread_name_prefix="compile")
    with threads, AsyncCompileMode(threads):
        JITFunction.run = only_compile
        try:
            yield
        finally:
            JITFunction.run = launch

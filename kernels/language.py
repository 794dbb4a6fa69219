"""Triton as the kernel files see it: `jit` and `tl`, usable on a machine without a GPU and on one without Triton.

Without a CUDA device Triton can only interpret, and it decides so when it is first imported; so that choice is made
here, before the import. Where Triton does not exist (macOS) the kernel files still import and their references run.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    import triton
    import triton.language as tl

    TRITON_INSTALLED = True
    INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # for kernels, where a GPU instruction has no other name
except ModuleNotFoundError:  # pragma: no cover - only where no Triton is built
    from types import SimpleNamespace

    triton = SimpleNamespace(jit=lambda function=None, **_: function or (lambda wrapped: wrapped))
    tl = SimpleNamespace(constexpr=lambda value: value)
    TRITON_INSTALLED = False
    INTERPRETED = False


class Kernel(Protocol):
    """A compiled or interpreted function: `kernel[grid](*arguments)` launches it, other kernels call it plainly."""

    def __call__(self, *arguments: Any) -> Any: ...

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]: ...


def jit(function: Callable[..., Any]) -> Kernel:
    """Make a Triton kernel, or a function that kernels call, of a Python function."""
    kernel: Kernel = triton.jit(function)
    return kernel


def jit_alike(*names: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Return `jit` for kernels of which these arguments change from step to step: no variant for 1, 16 or alignment.

    A new variant is compiled where it is met, and whoever has a token to come waits seconds for it.
    """

    def decorate(function: Callable[..., Any]) -> Kernel:
        kernel: Kernel = triton.jit(do_not_specialize=names)(function)
        return kernel

    return decorate


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not below `n` (block shapes must be powers of two)."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


__all__ = ["INTERPRETED", "TRITON_INSTALLED", "Kernel", "cdiv", "jit", "jit_alike", "next_power_of_2", "tl"]

"""Which form of an op runs: reference (torch), native (C) or Triton. Every public op asks here and nowhere else.

CUDA tensors take Triton; float32 tensors on a CPU the native kernels where these are built, else the reference.
HEADRACE_KERNELS=reference|triton|native, read once, overrides that; on a machine without a GPU `triton` means Triton's
interpreter, which is slow and made for tests. An op without a native form takes its reference.

Inside `fixed_order`, Triton ops whose sums would else depend on the size of the batch take one tiling for all sizes.
What a step asks for holds in its own thread: another thread's step may begin and end meanwhile.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from kernels.native.library import built

Form = Literal["reference", "triton", "native"]

_VARIABLE = "HEADRACE_KERNELS"


def _from_environment() -> Form | None:
    value = os.environ.get(_VARIABLE, "")
    if value and value not in get_args(Form):
        raise ValueError(f"{_VARIABLE} is {value!r}; it must be one of {', '.join(get_args(Form))}, or unset")
    return cast(Form, value) if value else None


_forced: Form | None = _from_environment()
_on_cpu: ContextVar[Form] = ContextVar("_on_cpu", default="native")
_fixed: ContextVar[bool] = ContextVar("_fixed", default=False)


def form(tensor: torch.Tensor) -> Form:
    """Return the form in which an op on `tensor` runs; one that has no native form takes its reference instead."""
    if _forced is not None:
        return _forced
    if tensor.is_cuda:
        return "triton"
    return _on_cpu.get() if tensor.dtype == torch.float32 and built() else "reference"


@contextmanager
def forced(name: Form) -> Iterator[None]:
    """Run every op inside in the form `name`, whatever the device (tests and comparisons)."""
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


@contextmanager
def on_cpu(name: Form) -> Iterator[None]:
    """Let CPU tensors take the form `name` inside unless one is forced: the exact mode asks for its reference."""
    before = _on_cpu.set(name)
    try:
        yield
    finally:
        _on_cpu.reset(before)


def fixed() -> bool:
    """Whether a row's bits may depend on nothing but the row."""
    return _fixed.get()


@contextmanager
def fixed_order() -> Iterator[None]:
    """Let every op inside add in an order that the rest of the batch has no part in."""
    before = _fixed.set(True)
    try:
        yield
    finally:
        _fixed.reset(before)


def processors(tensor: Tensor, *, elsewhere: int) -> int:
    """Return how many processors the tensor's GPU has; `elsewhere` where kernels are interpreted."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else elsewhere

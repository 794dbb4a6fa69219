"""Which form of an op runs: the torch reference or the Triton kernel. Every public op asks here and nowhere else.

CUDA tensors take Triton, CPU tensors the reference. HEADRACE_KERNELS=reference|triton, read once, overrides both; on a
machine without a GPU `triton` means Triton's interpreter, which is slow and made for tests.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast, get_args

import torch

Form = Literal["reference", "triton"]

_VARIABLE = "HEADRACE_KERNELS"


def _from_environment() -> Form | None:
    value = os.environ.get(_VARIABLE, "")
    if value and value not in get_args(Form):
        raise ValueError(f"{_VARIABLE} is {value!r}; it must be one of {', '.join(get_args(Form))}, or unset")
    return cast(Form, value) if value else None


_forced: Form | None = _from_environment()


def form(tensor: torch.Tensor) -> Form:
    """Return the form in which an op on `tensor` runs."""
    if _forced is not None:
        return _forced
    return "triton" if tensor.is_cuda else "reference"


@contextmanager
def forced(name: Form) -> Iterator[None]:
    """Run every op inside in the form `name`, whatever the device (tests and comparisons)."""
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before

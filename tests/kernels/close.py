"""When a kernel's result is close enough to the truth."""

from typing import Protocol

import torch
from torch import Tensor

# Triton's interpreter cuts bf16 off instead of rounding it, so exact comparisons use float16.
_TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


class Close(Protocol):
    """The fixture `close`."""

    def __call__(self, out: Tensor, truth: Tensor, *, loose: float = 1.0) -> None: ...


def assert_close(out: Tensor, truth: Tensor, *, loose: float = 1.0) -> None:
    """Assert a small relative error of `out` against a float64 truth of the same shape; NaN never passes."""
    assert out.shape == truth.shape
    wide, truth = out.detach().cpu().double(), truth.detach().cpu().double()
    assert bool(torch.isfinite(wide).all()), "not every element was written with a number"
    error = float((wide - truth).norm() / truth.norm().clamp(min=1e-30))
    assert error <= _TOLERANCE[out.dtype] * loose, f"relative error {error:.2e}"

"""Which rows hold nothing but finite numbers: a sequence with other logits must fail, and no other one with it."""

import torch
from torch import Tensor

from kernels import dispatch
from kernels.native import record


def all_finite(x: Tensor) -> Tensor:
    """Return for each row of `x` [S, V] whether all of it is finite, bool [S]."""
    if dispatch.form(x) == "native" and x.dtype == torch.float32 and x.dim() == 2 and x.stride(1) == 1:
        out = record.empty((x.shape[0],), torch.bool)
        numbers, pointers = (*x.shape, x.stride(0)), (x.data_ptr(), out.data_ptr())
        record.call([record.Record(record.FINITE, numbers, pointers)], (x, out))
        return out
    return reference(x)


def reference(x: Tensor) -> Tensor:
    """Look at every element in plain torch; two kernels on a GPU, beside a step nothing."""
    return torch.isfinite(x).all(-1)

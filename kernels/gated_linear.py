"""Gate and up projection with the gate between them: act(x G^T) * (x U^T).

Two kernels in general, a product of twice the width and the gate; on a Hopper GPU one, which is ahead where the product
is no longer bound by reading the weights.
"""

import torch
from torch import Tensor

from kernels import activation, dispatch, gemv

_FEWEST_ROWS = 1024  # from which one kernel is ahead


def gated_linear(x: Tensor, weight: Tensor, act: int) -> Tensor:
    """Return act(`x` [T, E] G^T) * (x U^T): [T, F]. `weight` [2F, E] is G, then U; `act` is one of `activation`'s."""
    if dispatch.form(x) == "triton" and x.shape[0] >= _FEWEST_ROWS and hopper_fits(x, weight):
        from kernels import hopper_gated_linear  # Gluon, which neither the interpreter nor an older card needs to load

        out = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
        hopper_gated_linear.launch(x, weight, act, out)
        return out
    return activation.act_and_mul(gemv.linear(x, weight), act)


def reference(x: Tensor, weight: Tensor, act: int) -> Tensor:
    """Multiply and gate in plain torch, one after the other."""
    return activation.reference(gemv.reference(x, weight), act)


def hopper_fits(x: Tensor, weight: Tensor) -> bool:
    """Say whether the Hopper form can serve these: whole tiles of the weight, rows that the copy unit can address."""
    on_hopper = x.is_cuda and torch.cuda.get_device_capability(x.device) == (9, 0) and not dispatch.fixed()
    whole = weight.shape[0] % 256 == 0 and weight.shape[1] % 64 == 0 and weight.is_contiguous()
    rows = x.element_size() == 2 and x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0
    return on_hopper and whole and rows

"""Gate and up projection with the gate between them: act(x G^T) * (x U^T).

Two kernels in general, a product of twice the width and the gate; on a Hopper GPU one, which is ahead where the product
is no longer bound by reading the weights.
"""

import torch
from torch import Tensor

from kernels import activation, dispatch, gemv

# Rows for which one kernel is ahead: waves of tiles of 128 are nearly full. H200, 4,096 -> 2 x 14,336, us against two:
# 63 / 70 at 128 rows, 95 / 99-106 at 256, 180 / 285 at 448, 302 / 325 at 896, 345 / 368 at 1,024, 2,820 / 2,860 at
# 8,192 (and down 43 less in a layer of 4,400 behind it); behind at 192 (94 / 81), 384 (141 / 136) and 512 (186 / 172).
_ROWS = (range(97, 129), range(225, 257), range(385, 449), range(769, 1 << 30))


def gated_linear(x: Tensor, weight: Tensor, act: int) -> Tensor:
    """Return act(`x` [T, E] G^T) * (x U^T): [T, F]. `weight` [2F, E] is G, then U; `act` is one of `activation`'s."""
    if dispatch.form(x) == "triton" and any(x.shape[0] in rows for rows in _ROWS) and hopper_fits(x, weight):
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

"""What a token's experts have made of it, weighed by their shares and added, always in the order of its choices."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit, next_power_of_2, tl
from kernels.native import record


def expert_sum(parts: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """Return [T, E]: the sum over a token's choices of `shares` [T, C] * `parts` [P, E] at `places` int32 [T, C]."""
    if parts.dim() != 2 or not parts.is_contiguous() or places.shape != shares.shape:
        raise ValueError(f"parts {tuple(parts.shape)} must be dense; places {tuple(places.shape)} must fit the shares")
    form = dispatch.form(parts)
    if form == "native" and parts.dtype == torch.float32:
        return _native(parts, places, shares)
    return _launch(parts, places, shares) if form == "triton" else reference(parts, places, shares)


def reference(parts: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """Add in plain torch; float32 inside."""
    total = torch.zeros((len(places), parts.shape[1]), dtype=torch.float32, device=parts.device)
    for place, share in zip(places.unbind(1), shares.unbind(1), strict=True):
        total += parts[place].float() * share[:, None]
    return total.to(parts.dtype)


def _native(parts: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    (T, C), E = places.shape, parts.shape[1]
    out = record.empty((T, E))
    pointers = tuple(each.data_ptr() for each in (parts, places, shares, out))
    record.call([record.Record(record.EXPERT_SUM, (T, E, C), pointers)], (parts, places, shares, out))
    return out


def _launch(parts: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    (T, C), E = places.shape, parts.shape[1]
    out = torch.empty((T, E), dtype=parts.dtype, device=parts.device)
    if T:
        block = min(1024, next_power_of_2(E))  # 8 outputs a thread: loads of 16 bytes
        _expert_sum_kernel[(T, cdiv(E, block))](parts, places, shares, out, E, C=C, BLOCK=block, num_warps=4)
    return out


@jit
def _expert_sum_kernel(parts_ptr, places_ptr, shares_ptr, out_ptr, E, C: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < E
    total = tl.zeros([BLOCK], tl.float32)
    for c in tl.static_range(C):
        place = tl.load(places_ptr + row * C + c).to(tl.int64)
        share = tl.load(shares_ptr + row * C + c)
        total += tl.load(parts_ptr + place * E + column, mask=live, other=0.0).to(tl.float32) * share
    tl.store(out_ptr + row * E + column, total.to(out_ptr.dtype.element_ty), mask=live)

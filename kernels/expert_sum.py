"""What a token's experts have made of it, weighed by their shares and added, always in the order of its choices."""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.few_rows_product import HalfNormed, RmsNormWeights
from kernels.language import cdiv, jit, next_power_of_2, tl
from kernels.native import record


def expert_sum(parts: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """Return [T, E]: the sum over a token's choices of `shares` [T, C] * `parts` [P, E] at `places` int32 [T, C]."""
    _check(parts, places, shares)
    form = dispatch.form(parts)
    if form == "native" and parts.dtype == torch.float32:
        return _native(parts, places, shares)
    if form != "triton":
        return reference(parts, places, shares)
    out = torch.empty((len(places), parts.shape[1]), dtype=parts.dtype, device=parts.device)
    _launch(parts, places, shares, out)
    return out


def expert_add(
    parts: Tensor, places: Tensor, shares: Tensor, total: Tensor, then: RmsNormWeights | None = None
) -> HalfNormed | None:
    """Add the same to `total` [T, E] in place; with `then`, the norm after it, begin that if it saves a kernel.

    That is for products of few rows: those of one row norm it themselves.
    """
    _check(parts, places, shares)
    T, E = len(places), parts.shape[1]
    if total.shape != (T, E) or not total.is_contiguous():
        raise ValueError(f"total has shape {tuple(total.shape)}; it must be contiguous {(T, E)}")
    if dispatch.form(parts) == "triton":
        return _launch(parts, places, shares, total, add=True, then=then if T > 1 else None)
    total.add_(reference(parts, places, shares))
    return None


def _check(parts: Tensor, places: Tensor, shares: Tensor) -> None:
    if parts.dim() != 2 or not parts.is_contiguous() or places.shape != shares.shape:
        raise ValueError(f"parts {tuple(parts.shape)} must be dense; places {tuple(places.shape)} must fit the shares")


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


def _launch(
    parts: Tensor, places: Tensor, shares: Tensor, out: Tensor, *, add: bool = False, then: RmsNormWeights | None = None
) -> HalfNormed | None:
    (T, C), E = places.shape, parts.shape[1]
    block = min(1024, next_power_of_2(E))  # 8 outputs a thread: loads of 16 bytes
    left: HalfNormed | None = None
    after: tuple[object, ...] = (None,) * 4
    if then is not None:
        left = HalfNormed(torch.empty_like(out), out.new_empty((cdiv(E, block), T), dtype=torch.float32))
        after = (then.weight, then.offset, left.scaled, left.squares)
    if T:
        _expert_sum_kernel[(T, cdiv(E, block))](
            parts, places, shares, out, E, *after, C=C, BLOCK=block, ADD=add, num_warps=4
        )
    return left


@jit
def _expert_sum_kernel(
    parts_ptr, places_ptr, shares_ptr, out_ptr, E, norm_ptr, offset, scaled_ptr, squares_ptr,
    C: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < E
    total = tl.zeros([BLOCK], tl.float32)
    for c in tl.static_range(C):
        place = tl.load(places_ptr + row * C + c).to(tl.int64)
        share = tl.load(shares_ptr + row * C + c)
        total += tl.load(parts_ptr + place * E + column, mask=live, other=0.0).to(tl.float32) * share
    to = row * E + column
    if ADD:
        total += tl.load(out_ptr + to, mask=live, other=0.0).to(tl.float32)
    rounded = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + to, rounded, mask=live)
    if norm_ptr is not None:  # the half of a norm that its maker can do (few_rows_product.HalfNormed)
        total = rounded.to(tl.float32)
        scale = tl.load(norm_ptr + column, mask=live, other=0.0).to(tl.float32) + offset
        tl.store(scaled_ptr + to, (total * scale).to(scaled_ptr.dtype.element_ty), mask=live)
        tl.store(squares_ptr + tl.program_id(1) * tl.num_programs(0) + row, tl.sum(total * total, 0))

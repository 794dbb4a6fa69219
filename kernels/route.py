"""Which experts compute a token: those most likely by a softmax of the router's logits, each with its share.

Source: Shazeer et al., "Outrageously Large Neural Networks" (2017); the softmax over all experts is Mixtral's.
"""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import jit, next_power_of_2, tl
from kernels.native import record


class Routes(NamedTuple):
    """For each token C experts, the likeliest first: `chosen` int32 [T, C], and their `shares` float32 [T, C]."""

    chosen: Tensor
    shares: Tensor


def route(logits: Tensor, num_chosen: int, *, renormalise: bool) -> Routes:
    """Choose among the experts of `logits` [T, X]; of two that are as likely, the lower number is first.

    Shares are probabilities; with `renormalise` those of the chosen add up to 1. A token whose logits are no numbers
    has shares that are none.
    """
    if logits.dim() != 2 or not 1 <= num_chosen <= logits.shape[1]:
        raise ValueError(f"{num_chosen} experts cannot be chosen by logits of shape {tuple(logits.shape)}")
    form = dispatch.form(logits)
    if form == "native" and logits.dtype == torch.float32 and logits.stride(1) == 1:
        return _native(logits, num_chosen, renormalise)
    return _launch(logits, num_chosen, renormalise) if form == "triton" else reference(logits, num_chosen, renormalise)


def reference(logits: Tensor, num_chosen: int, renormalise: bool) -> Routes:
    """Choose in plain torch."""
    shares, chosen = logits.float().softmax(-1).sort(dim=-1, descending=True, stable=True)
    shares = shares[:, :num_chosen]
    if renormalise:
        shares = shares / shares.sum(-1, keepdim=True)
    return Routes(chosen[:, :num_chosen].int(), shares.contiguous())


def _native(logits: Tensor, num_chosen: int, renormalise: bool) -> Routes:
    T, X = logits.shape
    out = Routes(record.empty((T, num_chosen), torch.int32), record.empty((T, num_chosen)))
    numbers = (T, X, logits.stride(0), num_chosen, int(renormalise))
    pointers = (logits.data_ptr(), out.chosen.data_ptr(), out.shares.data_ptr())
    record.call([record.Record(record.ROUTE, numbers, pointers)], (logits, *out))
    return out


def _launch(logits: Tensor, num_chosen: int, renormalise: bool) -> Routes:
    T, X = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = Routes(
        torch.empty((T, num_chosen), dtype=torch.int32, device=logits.device),
        torch.empty((T, num_chosen), dtype=torch.float32, device=logits.device),
    )
    if T:  # a program for each token: a row of 128 logits is a load for each thread of one warp
        _route_kernel[(T,)](
            logits, *out, X, logits.stride(0), C=num_chosen, RENORMALISE=renormalise,
            BLOCK=next_power_of_2(X), CHOICES=next_power_of_2(num_chosen), num_warps=1,
        )  # fmt: skip
    return out


@jit
def _route_kernel(
    logits_ptr, chosen_ptr, shares_ptr, X, stride,
    C: tl.constexpr, RENORMALISE: tl.constexpr, BLOCK: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + expert, mask=expert < X, other=float("-inf")).to(tl.float32)
    weight = tl.exp(logits - tl.max(logits, 0))
    shares = weight / tl.sum(weight, 0)
    # What is no number is chosen last, but by its number it is an expert all the same.
    left = tl.where(expert < X, tl.where(shares == shares, shares, 0.0), -1.0)
    choice = tl.arange(0, CHOICES)
    chosen, found = tl.zeros([CHOICES], tl.int32), tl.zeros([CHOICES], tl.float32)
    for c in tl.static_range(C):
        best = tl.min(tl.where(left == tl.max(left, 0), expert, BLOCK), 0)
        share = tl.sum(tl.where(expert == best, shares, 0.0), 0)
        chosen = tl.where(choice == c, best, chosen)
        found = tl.where(choice == c, share, found)
        left = tl.where(expert == best, -2.0, left)
    if RENORMALISE:
        found = found / tl.sum(found, 0)
    tl.store(chosen_ptr + row * C + choice, chosen, mask=choice < C)
    tl.store(shares_ptr + row * C + choice, found, mask=choice < C)

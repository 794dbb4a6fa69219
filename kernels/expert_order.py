"""Tokens in the order of the experts that compute them, so that each expert's stand side by side.

Within an expert they keep their order. Nothing is read on the host, so a step with experts can be recorded.
"""

# mypy: disable-error-code="no-untyped-def"
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import jit, jit_alike, tl
from kernels.native import record
from kernels.route import Routes


class ExpertOrder(NamedTuple):
    """P = T * C places, those of one expert after those of the one before it.

    `rows` int32 [P]: the token at a place. `places` int32 [T, C]: where a token's choices are. `begins` int32 [X + 1]:
    the first place of each expert, and P.
    """

    rows: Tensor
    places: Tensor
    begins: Tensor

    def spans(self) -> Iterator[tuple[int, slice]]:
        """Yield each expert that has tokens, and its places. They are read on the host: no tape holds what follows."""
        record.refuse("experts in plain torch")
        for expert, (begin, end) in enumerate(pairwise(self.begins.tolist())):
            if end > begin:
                yield expert, slice(begin, end)


def expert_order(routes: Routes, num_experts: int) -> ExpertOrder:
    """Order the tokens of `routes` [T, C] by their experts, whose numbers are below `num_experts`."""
    chosen = routes.chosen
    if chosen.dim() != 2 or chosen.dtype != torch.int32 or not chosen.is_contiguous():
        raise ValueError(f"chosen is {chosen.dtype} {tuple(chosen.shape)}; it must be contiguous int32 [T, C]")
    form = dispatch.form(routes.shares)
    if form == "native":
        return _native(chosen, num_experts)
    return _launch(chosen, num_experts) if form == "triton" else reference(chosen, num_experts)


def reference(chosen: Tensor, num_experts: int) -> ExpertOrder:
    """Sort in plain torch."""
    experts, order = chosen.flatten().sort(dim=0, stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    borders = torch.arange(num_experts + 1, dtype=torch.int32, device=order.device)
    begins = torch.searchsorted(experts, borders, out_int32=True)
    return ExpertOrder((order // chosen.shape[1]).int(), places.view(chosen.shape).int(), begins)


def _native(chosen: Tensor, num_experts: int) -> ExpertOrder:
    shapes = ((chosen.numel(),), tuple(chosen.shape), (num_experts + 1,))
    out = ExpertOrder(*(record.empty(shape, torch.int32) for shape in shapes))
    pointers = tuple(each.data_ptr() for each in (chosen, *out))
    record.call([record.Record(record.EXPERT_ORDER, (*chosen.shape, num_experts), pointers)], (chosen, *out))
    return out


def _launch(chosen: Tensor, num_experts: int) -> ExpertOrder:
    shapes = ((chosen.numel(),), tuple(chosen.shape), (num_experts + 1,))
    out = ExpertOrder(*(torch.empty(shape, dtype=torch.int32, device=chosen.device) for shape in shapes))
    # A program for each expert reads all choices twice: no atomics, and 8 experts of 8,192 tokens are 256 KB. One more
    # tells where the last one ends.
    _expert_order_kernel[(num_experts + 1,)](chosen, *out, chosen.numel(), chosen.shape[1], BLOCK=1024, num_warps=4)
    return out


@jit_alike("P")
def _expert_order_kernel(chosen_ptr, rows_ptr, places_ptr, begins_ptr, P, C, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    place = 0
    for at in range(0, P, BLOCK):
        chosen = tl.load(chosen_ptr + at + offsets, mask=at + offsets < P, other=0x7FFFFFFF)
        place += tl.sum((chosen < expert).to(tl.int32), 0)
    tl.store(begins_ptr + expert, place)
    for at in range(0, P, BLOCK):
        pair = at + offsets
        mine = tl.load(chosen_ptr + pair, mask=pair < P, other=0x7FFFFFFF) == expert
        count = mine.to(tl.int32)
        to = place + tl.cumsum(count, 0) - count
        tl.store(rows_ptr + to, pair // C, mask=mine)
        tl.store(places_ptr + pair, to, mask=mine)
        place += tl.sum(count, 0)


@jit
def order_few(
    chosen_ptr, rows_ptr, places_ptr, begins_ptr, P, X, C, PAIRS: tl.constexpr, BORDERS: tl.constexpr
):  # fmt: skip
    """Order P choices in one program, which counts how many stand before each; they are read past the L1 cache."""
    pair, expert = tl.arange(0, PAIRS), tl.arange(0, BORDERS)
    mine = tl.load(chosen_ptr + pair, mask=pair < P, other=0x7FFFFFFF, cache_modifier=".cg")
    place, begin = tl.zeros([PAIRS], tl.int32), tl.zeros([BORDERS], tl.int32)
    for at in range(0, P, 16):
        other = at + tl.arange(0, 16)
        theirs = tl.load(chosen_ptr + other, mask=other < P, other=0x7FFFFFFF, cache_modifier=".cg")
        same = (theirs[None, :] == mine[:, None]) & (other[None, :] < pair[:, None])
        place += tl.sum(((theirs[None, :] < mine[:, None]) | same).to(tl.int32), 1)
        begin += tl.sum((theirs[None, :] < expert[:, None]).to(tl.int32), 1)
    tl.store(rows_ptr + place, pair // C, mask=pair < P)
    tl.store(places_ptr + pair, place, mask=pair < P)
    tl.store(begins_ptr + expert, begin, mask=expert <= X)

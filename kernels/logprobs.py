"""Log-probabilities of the chosen tokens and of the best n, from one pass over the logits and a look at a few groups.

As in sampling, the pass leaves the maxima of groups of 128 tokens. The n best tokens lie in the n groups with the
largest maxima, so that the second kernel reads n * 128 logits instead of V.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit, jit_alike, next_power_of_2, tl

_MAX_N = 128
_FEW = 32  # room for the best so many, or for the most: two variants, and more room costs a short list nothing


def top_logprobs(logits: Tensor, chosen: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (log-probability of `chosen` [S], ids of the best `n` [S, n], their log-probabilities [S, n]).

    `logits` is [S, V], `chosen` int64 [S]; results are float32 and int64, the best first, the lower id first among
    equals. Where a row has fewer than n finite logits, the rest are -inf.
    """
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; it must be [S, V], contiguous in its last dimension")
    if chosen.shape != logits.shape[:1] or chosen.dtype != torch.int64:
        raise ValueError(f"chosen is {chosen.dtype} {tuple(chosen.shape)}; it must be int64 ({logits.shape[0]},)")
    if not 0 <= n <= min(_MAX_N, logits.shape[1]):
        raise ValueError(f"n is {n}; it must lie between 0 and {min(_MAX_N, logits.shape[1])}")
    if dispatch.form(logits) == "triton":
        return _launch(logits, chosen, n)
    return reference(logits, chosen, n)


def reference(logits: Tensor, chosen: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-softmax in plain torch; a stable order among equals by asking for one token more than n would tie with."""
    x = logits.float()
    total = x.logsumexp(-1, keepdim=True)
    of_chosen = (x.gather(1, chosen[:, None]) - total)[:, 0]
    if n == 0:
        return of_chosen, chosen.new_empty(x.shape[0], 0), x.new_empty(x.shape[0], 0)
    values, ids = x.topk(min(n + 1, x.shape[1]), dim=-1)
    if bool((values[:, 1:] == values[:, :-1]).any()):
        values, ids = x.sort(dim=-1, descending=True, stable=True)
    return of_chosen, ids[:, :n].contiguous(), values[:, :n] - total


_GROUP = tl.constexpr(128)
_CHUNK_GROUPS = 32


def _launch(logits: Tensor, chosen: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    S, V = logits.shape
    of_chosen = torch.empty(S, dtype=torch.float32, device=logits.device)
    ids = torch.empty((S, n), dtype=torch.int64, device=logits.device)
    values = torch.empty((S, n), dtype=torch.float32, device=logits.device)
    if S == 0:
        return of_chosen, ids, values
    groups = cdiv(V, 128)
    chunks = cdiv(groups, _CHUNK_GROUPS)
    scratch = torch.empty((S, groups + 2 * chunks), dtype=torch.float32, device=logits.device)
    _logprobs_scan_kernel[(S, chunks)](
        logits, logits.stride(0), scratch, V, groups, chunks, CHUNK_GROUPS=_CHUNK_GROUPS, num_warps=4
    )
    _logprobs_select_kernel[(S,)](
        logits, logits.stride(0), chosen, scratch, of_chosen, ids, values, V, groups, chunks, n,
        GROUPS=next_power_of_2(groups), CHUNKS=next_power_of_2(chunks), BEST=_FEW if n <= _FEW else _MAX_N, num_warps=4,
    )  # fmt: skip
    return of_chosen, ids, values


@jit
def _logprobs_scan_kernel(logits_ptr, row_stride, scratch_ptr, V, groups, chunks, CHUNK_GROUPS: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = chunk * CHUNK_GROUPS + tl.arange(0, CHUNK_GROUPS)
    ids = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    x = tl.load(logits_ptr + row * row_stride + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    best = tl.max(x, 1)
    top = tl.max(best, 0)
    pivot = tl.where(top == float("-inf"), 0.0, top)
    scratch = scratch_ptr + row * (groups + 2 * chunks)
    tl.store(scratch + group, best, mask=group < groups)
    tl.store(scratch + groups + chunk, top)
    tl.store(scratch + groups + chunks + chunk, tl.sum(tl.sum(tl.exp(x - pivot), 1), 0))


@jit_alike("n")
def _logprobs_select_kernel(
    logits_ptr, row_stride, chosen_ptr, scratch_ptr, of_chosen_ptr, ids_ptr, values_ptr, V, groups, chunks, n,
    GROUPS: tl.constexpr, CHUNKS: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scratch = scratch_ptr + row * (groups + 2 * chunks)
    chunk = tl.arange(0, CHUNKS)
    chunk_top = tl.load(scratch + groups + chunk, mask=chunk < chunks, other=float("-inf"))
    mass = tl.load(scratch + groups + chunks + chunk, mask=chunk < chunks, other=0.0)
    top = tl.max(chunk_top, 0)
    pivot = tl.where(top == float("-inf"), 0.0, top)
    total = pivot + tl.log(tl.sum(mass * tl.exp(chunk_top - pivot), 0))
    logits = logits_ptr + row * row_stride
    tl.store(of_chosen_ptr + row, tl.load(logits + tl.load(chosen_ptr + row)).to(tl.float32) - total)
    if n > 0:
        # Take the n groups with the largest maxima, lower groups first among equals, by n arg-maxima in registers.
        group, rank = tl.arange(0, GROUPS), tl.arange(0, BEST)
        best = tl.load(scratch + group, mask=group < groups, other=float("-inf"))
        left, picked = group < groups, tl.full([BEST], 0, tl.int32) + groups
        for i in range(n):
            high = tl.max(tl.where(left, best, float("-inf")), 0)
            first = tl.min(tl.where(left & (best == high), group, GROUPS), 0)
            picked = tl.where((rank == i) & (first < GROUPS), first, picked)
            left = left & (group != first)
        ids = picked[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        open_ = (picked < groups)[:, None] & (ids < V)
        x = tl.load(logits + ids, mask=open_, other=float("-inf")).to(tl.float32)
        for i in range(n):
            high = tl.max(tl.max(tl.where(open_, x, float("-inf")), 1), 0)
            first = tl.min(tl.min(tl.where(open_ & (x == high), ids, V), 1), 0)
            tl.store(ids_ptr + row * n + i, first.to(tl.int64))
            tl.store(values_ptr + row * n + i, high - total)
            open_ = open_ & (ids != first)

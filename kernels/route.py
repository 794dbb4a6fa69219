"""Which experts compute a token: those that a router scores highest, each with its share.

Scores are a softmax of the logits, or each logit's sigmoid. A bias for each expert may decide with them who is chosen,
while shares stay those of the scores alone; and experts may lie in groups, of which only the best few are looked at.

Sources: Shazeer et al., "Outrageously Large Neural Networks" (2017); the softmax over all experts is Mixtral's, bias
and groups are DeepSeek-V3's (arXiv 2412.19437), groups by their best expert DeepSeek-V2's (arXiv 2405.04434).
"""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import jit, next_power_of_2, tl
from kernels.native import record

MAX_NATIVE = 4096  # experts of which a native kernel keeps the scores at hand (src/experts.c)
# What decides about an expert whose score is no number: it is chosen last, but it is an expert all the same.
_NO_NUMBER = -1e30
_LEAST_SUM = 1e-20  # that shares are divided by


class Routes(NamedTuple):
    """For each token C experts, the first choice first: `chosen` int32 [T, C], and their `shares` float32 [T, C]."""

    chosen: Tensor
    shares: Tensor


class Rule(NamedTuple):
    """How logits become scores, who may be chosen, and what shares are multiplied with.

    Only experts in the `kept` best of `groups` are chosen. A group is as good as its best `leaders` experts together,
    one or two.
    """

    sigmoid: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    leaders: int = 2


USUAL = Rule()


def route(
    logits: Tensor, num_chosen: int, *, renormalise: bool, rule: Rule = USUAL, bias: Tensor | None = None
) -> Routes:
    """Choose among the experts of `logits` [T, X]; of two that are as good, the lower number is first.

    Shares are scores; with `renormalise` those of the chosen add up to 1, before they are scaled. `bias` float32 [X] is
    added to the scores that decide. A token whose logits are no numbers has shares that are none.
    """
    X = logits.shape[-1]
    if logits.dim() != 2:
        raise ValueError(f"logits have shape {tuple(logits.shape)}; they must be [T, X]")
    check(X, num_chosen, rule, bias)
    form = dispatch.form(logits)
    if form == "native" and logits.dtype == torch.float32 and logits.stride(1) == 1 and X <= MAX_NATIVE:
        return _native(logits, num_chosen, renormalise, rule, bias)
    return (_launch if form == "triton" else reference)(logits, num_chosen, renormalise, rule, bias)


def check(num_experts: int, num_chosen: int, rule: Rule, bias: Tensor | None) -> None:
    """Raise ValueError if not so many of these experts can be chosen, or not so."""
    if not 1 <= num_chosen <= num_experts:
        raise ValueError(f"{num_chosen} experts cannot be chosen of {num_experts}")
    if bias is not None and (bias.shape != (num_experts,) or bias.dtype != torch.float32 or not bias.is_contiguous()):
        raise ValueError(f"the bias must be float32 [{num_experts}], not {bias.dtype} {list(bias.shape)}")
    _check_groups(rule, num_experts, num_chosen)


def _check_groups(rule: Rule, X: int, num_chosen: int) -> None:
    groups, kept = rule.groups, rule.kept
    if groups == kept == 1:
        return
    if rule.leaders not in (1, 2):
        raise ValueError(f"{rule.leaders} experts cannot stand for a group; one can, or two")
    if not 1 <= kept <= groups or X % groups or rule.leaders * groups > X or num_chosen > kept * (X // groups):
        raise ValueError(f"{num_chosen} of {X} experts cannot be chosen from {kept} of {groups} groups")


def reference(logits: Tensor, num_chosen: int, renormalise: bool, rule: Rule, bias: Tensor | None) -> Routes:
    """Choose in plain torch."""
    wide = logits.float()
    scores = wide.sigmoid() if rule.sigmoid else wide.softmax(-1)
    deciding = scores if bias is None else scores + bias
    deciding = deciding.nan_to_num(_NO_NUMBER)
    if rule.groups > 1:
        deciding = _of_best_groups(deciding, rule)
    chosen = deciding.sort(dim=-1, descending=True, stable=True).indices[:, :num_chosen]
    shares = scores.gather(1, chosen)
    if renormalise:
        shares = shares / shares.sum(-1, keepdim=True).clamp_min(_LEAST_SUM)
    return Routes(chosen.int(), shares * rule.scale)


def _of_best_groups(deciding: Tensor, rule: Rule) -> Tensor:
    """Leave experts outside of the best groups out of the choice."""
    T, X = deciding.shape
    grouped = deciding.view(T, rule.groups, X // rule.groups)
    good = grouped.topk(rule.leaders, dim=-1).values.sum(-1)
    best = good.sort(dim=-1, descending=True, stable=True).indices[:, : rule.kept]
    closed = torch.ones(T, rule.groups, 1, dtype=torch.bool, device=deciding.device)
    closed.scatter_(1, best.unsqueeze(-1), value=False)
    return grouped.masked_fill(closed, float("-inf")).view(T, X)


def _native(logits: Tensor, num_chosen: int, renormalise: bool, rule: Rule, bias: Tensor | None) -> Routes:
    T, X = logits.shape
    out = Routes(record.empty((T, num_chosen), torch.int32), record.empty((T, num_chosen)))
    flags = (int(renormalise), int(rule.sigmoid), rule.groups, rule.kept, rule.leaders)
    numbers = (T, X, logits.stride(0), num_chosen, *flags)
    pointers = (logits.data_ptr(), out.chosen.data_ptr(), out.shares.data_ptr(), record.pointer(bias))
    record.call([record.Record(record.ROUTE, numbers, pointers, (rule.scale,))], (logits, *out, bias))
    return out


def _launch(logits: Tensor, num_chosen: int, renormalise: bool, rule: Rule, bias: Tensor | None) -> Routes:
    T, X = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = Routes(
        torch.empty((T, num_chosen), dtype=torch.int32, device=logits.device),
        torch.empty((T, num_chosen), dtype=torch.float32, device=logits.device),
    )
    if T:  # a program for each token: a row of 128 logits is a load for each thread of one warp
        _route_kernel[(T,)](
            logits, logits if bias is None else bias, *out, X, logits.stride(0), rule.scale,
            C=num_chosen, RENORMALISE=renormalise, SIGMOID=rule.sigmoid, BIASED=bias is not None,
            GROUPS=rule.groups, KEPT=rule.kept, LEADERS=rule.leaders, BLOCK=next_power_of_2(X),
            CHOICES=next_power_of_2(num_chosen), num_warps=1,
        )  # fmt: skip
    return out


@jit
def _route_kernel(
    logits_ptr, bias_ptr, chosen_ptr, shares_ptr, X, stride, scale,
    C: tl.constexpr, RENORMALISE: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, LEADERS: tl.constexpr, BLOCK: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + expert, mask=expert < X, other=float("-inf")).to(tl.float32)
    choice, chosen, shares = best_of(
        logits, expert, bias_ptr, X, C, RENORMALISE, SIGMOID, BIASED, GROUPS, KEPT, LEADERS, BLOCK, CHOICES
    )  # fmt: skip
    tl.store(chosen_ptr + row * C + choice, chosen, mask=choice < C)
    tl.store(shares_ptr + row * C + choice, shares * scale, mask=choice < C)


@jit
def best_of(
    logits, expert, bias_ptr, X, C: tl.constexpr, RENORMALISE: tl.constexpr, SIGMOID: tl.constexpr,
    BIASED: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, LEADERS: tl.constexpr, BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,
):  # fmt: skip
    """Return CHOICES numbers from 0 on, the experts that a row of logits chooses, and their shares, not yet scaled."""
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        weight = tl.exp(logits - tl.max(logits, 0))
        scores = weight / tl.sum(weight, 0)
    left = scores
    if BIASED:
        left += tl.load(bias_ptr + expert, mask=expert < X, other=0.0)
    left = tl.where(left == left, left, -1e30)  # no number: chosen last, but by its number it is an expert all the same
    if GROUPS > 1:
        left = _of_best_groups_kernel(left, expert, X // GROUPS, GROUPS, KEPT, LEADERS, BLOCK)
    left = tl.where(expert < X, left, -3e30)
    choice = tl.arange(0, CHOICES)
    chosen, found = tl.zeros([CHOICES], tl.int32), tl.zeros([CHOICES], tl.float32)
    for c in tl.static_range(C):
        best = tl.min(tl.where(left == tl.max(left, 0), expert, BLOCK), 0)
        share = tl.sum(tl.where(expert == best, scores, 0.0), 0)
        chosen = tl.where(choice == c, best, chosen)
        found = tl.where(choice == c, share, found)
        left = tl.where(expert == best, -4e30, left)
    if RENORMALISE:
        whole = tl.sum(found, 0)
        found = found / tl.where(whole < 1e-20, 1e-20, whole)
    return choice, chosen, found


@jit
def _of_best_groups_kernel(
    left, expert, size, GROUPS: tl.constexpr, KEPT: tl.constexpr, LEADERS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Put experts outside of the best groups behind all others."""
    group = expert // size
    good = tl.full([BLOCK], -3e30, tl.float32)  # of each expert, how good its group is
    for g in tl.static_range(GROUPS):
        members = tl.where(group == g, left, -3e30)
        best = tl.max(members, 0)
        if LEADERS == 2:
            at = tl.min(tl.where(members == best, expert, BLOCK), 0)
            best += tl.max(tl.where(expert == at, -3e30, members), 0)
        good = tl.where(group == g, best, good)
    kept = tl.zeros([BLOCK], tl.int32)
    for _ in tl.static_range(KEPT):
        best = tl.min(tl.where(good == tl.max(good, 0), expert, BLOCK), 0) // size
        kept = tl.where(group == best, 1, kept)
        good = tl.where(group == best, -4e30, good)
    return tl.where(kept == 1, left, -2e30)

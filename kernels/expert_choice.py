"""What a mixture does before its experts multiply, for few rows in one kernel: norm, router, choice and order.

Each of the four is a start and little work. So programs norm a token and compute a few of its logits, the last of a
token to arrive chooses, and the last token to have chosen puts all in the order of experts. The router's weights, which
do not change, are fetched before the wait for what is normed. For more rows than 16 that would be too many programs.
"""

# mypy: disable-error-code="no-untyped-def"
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import dependent, dispatch, expert_order, rms_norm, route
from kernels.expert_order import ExpertOrder, order_few
from kernels.few_rows_product import RmsNormWeights
from kernels.language import TRITON_INSTALLED, cdiv, jit_alike, next_power_of_2, tl
from kernels.route import USUAL, Routes, Rule, best_of

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


MAX_ROWS = 16


class Router(NamedTuple):
    """How experts are chosen: C by the logits x `weight`^T + `bias`, for `weight` [X, E].

    `rule`, `renormalise` and `deciding`, float32 [X], are those of `route.route`.
    """

    weight: Tensor
    bias: Tensor | None
    num_chosen: int
    renormalise: bool
    rule: Rule = USUAL
    deciding: Tensor | None = None


class ExpertChoice(NamedTuple):
    """The normed rows [T, E], who computes them, and in which order."""

    normed: Tensor
    routes: Routes
    order: ExpertOrder


def expert_choice(x: Tensor, norm: RmsNormWeights, router: Router, arrived: Tensor) -> ExpertChoice:
    """Norm `x` [T, E] and choose each row's experts; logits are not rounded.

    `arrived` int32, at least MAX_ROWS + 1 long, is zero before and after.
    """
    weight, deciding = router.weight, router.deciding
    if x.dim() != 2 or not x.is_contiguous() or not 0 < x.shape[0] <= MAX_ROWS:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be contiguous with 1 to {MAX_ROWS} rows")
    if weight.dim() != 2 or weight.shape[1] != x.shape[1] or not weight.is_contiguous():
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs contiguous [X, E]")
    if router.bias is not None and router.bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(router.bias.shape)}; it must be ({weight.shape[0]},)")
    if arrived.dtype != torch.int32 or arrived.numel() <= MAX_ROWS:
        raise ValueError(f"arrived has {arrived.numel()} elements; it must be int32 with {MAX_ROWS + 1}")
    route.check(weight.shape[0], router.num_chosen, router.rule, deciding)
    return (_launch if dispatch.form(x) == "triton" else reference)(x, norm, router, arrived)


def reference(x: Tensor, norm: RmsNormWeights, router: Router, _arrived: Tensor | None = None) -> ExpertChoice:
    """Norm, multiply, choose and order in plain torch."""
    normed = rms_norm.reference(x, norm.weight, norm.eps, offset=norm.offset)
    bias = None if router.bias is None else router.bias.float()
    logits = functional.linear(normed.float(), router.weight.float(), bias)
    routes = route.reference(logits, router.num_chosen, router.renormalise, router.rule, router.deciding)
    return ExpertChoice(normed, routes, expert_order.reference(routes.chosen, logits.shape[1]))


def _launch(x: Tensor, norm: RmsNormWeights, router: Router, arrived: Tensor) -> ExpertChoice:
    (T, E), X, C, rule = x.shape, router.weight.shape[0], router.num_chosen, router.rule
    logits = x.new_empty((T, X), dtype=torch.float32)
    routes = Routes(x.new_empty((T, C), dtype=torch.int32), x.new_empty((T, C), dtype=torch.float32))
    order = ExpertOrder(*(x.new_empty(shape, dtype=torch.int32) for shape in ((T * C,), (T, C), (X + 1,))))
    normed = torch.empty_like(x)
    block = next_power_of_2(E)
    rows = 1 if T <= 8 else 2  # of the router's weight: 1,024 programs at the most for 128 experts
    _expert_choice_kernel[(cdiv(X, rows), T)](
        x, norm.weight, norm.eps, norm.offset, router.weight, router.bias, router.deciding, normed, logits, arrived,
        *routes, *order, rule.scale, T, X=X, E=E, C=C, BLOCK=block, ROWS=rows, MOST=MAX_ROWS,
        RENORMALISE=router.renormalise, SIGMOID=rule.sigmoid, GROUPS=rule.groups, KEPT=rule.kept, LEADERS=rule.leaders,
        EXPERTS=next_power_of_2(X), CHOICES=next_power_of_2(C), BORDERS=next_power_of_2(X + 1),
        PAIRS=next_power_of_2(T * C), num_warps=4, **dependent.launch(x),
    )  # fmt: skip
    return ExpertChoice(normed, routes, order)


@jit_alike("T")
def _expert_choice_kernel(
    x_ptr, norm_ptr, eps, offset, weight_ptr, bias_ptr, deciding_ptr, normed_ptr, logits_ptr, arrived_ptr,
    chosen_ptr, shares_ptr, rows_ptr, places_ptr, begins_ptr, share_scale, T,
    X: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, MOST: tl.constexpr,
    RENORMALISE: tl.constexpr, SIGMOID: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, LEADERS: tl.constexpr,
    EXPERTS: tl.constexpr, CHOICES: tl.constexpr, BORDERS: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some logits of a token; what a last one does besides has the row in its registers, or reads past the L1 cache."""
    if PDL:
        gdc_launch_dependents()
    token, n, column = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = column < E
    weights = tl.load(
        weight_ptr + n.to(tl.int64)[:, None] * E + column[None, :], mask=(n < X)[:, None] & inside[None, :], other=0.0
    )
    scale = tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32) + offset
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + token * E + column, mask=inside, other=0.0).to(tl.float32)
    y = (x * tl.rsqrt(tl.sum(x * x, 0) / E + eps) * scale).to(normed_ptr.dtype.element_ty)
    if tl.program_id(0) == 0:
        tl.store(normed_ptr + token * E + column, y, mask=inside)
    logits = tl.sum(weights.to(tl.float32) * y.to(tl.float32)[None, :], 1)
    if bias_ptr is not None:
        logits += tl.load(bias_ptr + n, mask=n < X, other=0.0).to(tl.float32)
    tl.store(logits_ptr + token * X + n, logits, mask=n < X)
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr + token, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(arrived_ptr + token, 0)
        expert = tl.arange(0, EXPERTS)
        at = logits_ptr + token * X + expert
        row = tl.load(at, mask=expert < X, other=float("-inf"), cache_modifier=".cg")
        choice, chosen, shares = best_of(
            row, expert, deciding_ptr, X, C, RENORMALISE, SIGMOID, deciding_ptr is not None, GROUPS, KEPT, LEADERS,
            EXPERTS, CHOICES,
        )  # fmt: skip
        tl.store(chosen_ptr + token * C + choice, chosen, mask=choice < C)
        tl.store(shares_ptr + token * C + choice, shares * share_scale, mask=choice < C)
        tl.debug_barrier()
        if tl.atomic_add(arrived_ptr + MOST, 1, sem="acq_rel") == T - 1:
            tl.store(arrived_ptr + MOST, 0)
            order_few(chosen_ptr, rows_ptr, places_ptr, begins_ptr, T * C, X, C, PAIRS, BORDERS)

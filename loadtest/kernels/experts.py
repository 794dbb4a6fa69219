"""Cases of what mixtures of experts add, in the shape of Qwen3-30B-A3B: 8 of 128 experts of 768 inside 2,048."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels import expert_linear as linear_op
from kernels import expert_order as order_op
from kernels import expert_sum as sum_op
from kernels import route as route_op
from loadtest.kernels.case import CUDA, Case, randn

X, C, E, F = 128, 8, 2048, 768
TOKENS = (1, 16, 64, 256, 4096)


def _routes(T: int) -> route_op.Routes:
    return route_op.route(randn(T, X), C, renormalise=True)


def route() -> Iterator[Case]:
    for T in TOKENS:
        logits = [randn(T, X) for _ in range(3)]
        yield Case(f"{T} x {X}", [partial(route_op.route, x, C, renormalise=True) for x in logits], bytes=2 * T * X)


def expert_order() -> Iterator[Case]:
    for T in TOKENS:
        routes = [_routes(T) for _ in range(3)]
        yield Case(f"{T} x {C} of {X}", [partial(order_op.expert_order, each, X) for each in routes], bytes=8 * T * C)


def expert_linear() -> Iterator[Case]:
    """The least is each weight that somebody chose, once; where that is less than the operations take, these."""
    for T in TOKENS:
        for name, outputs, inputs, gather in (("gate and up", 2 * F, E, True), ("down", E, F, False)):
            order = order_op.expert_order(_routes(T), X)
            used = int((order.begins[1:] > order.begins[:-1]).sum())
            weights = [randn(X, outputs, inputs) for _ in range(2)]
            x = randn(T if gather else T * C, inputs)
            few = 300 * used > T * C  # products of fewer rows an expert wait for memory
            yield Case(
                f"{name}, {T} tokens, {used} experts",
                [partial(linear_op.expert_linear, x, weight, order, gather=gather) for weight in weights],
                bytes=2 * used * outputs * inputs if few else 0,
                flops=0 if few else 2 * T * C * outputs * inputs,
            )


def expert_sum() -> Iterator[Case]:
    for T in TOKENS:
        parts, shares = randn(T * C, E), torch.rand(T, C, device=CUDA)
        places = torch.randperm(T * C, device=CUDA, dtype=torch.int32).view(T, C)
        yield Case(f"{T} x {C} x {E}", [partial(sum_op.expert_sum, parts, places, shares)], bytes=2 * T * (C + 1) * E)

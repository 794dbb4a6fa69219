"""Cases of what mixtures of experts add: routes in the shape of Qwen3-30B-A3B, products also in those of gpt-oss."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from kernels import expert_linear as linear_op
from kernels import expert_order as order_op
from kernels import expert_sum as sum_op
from kernels import route as route_op
from loadtest.kernels.case import CUDA, Case, randn

X, C, E = 128, 8, 2048
TOKENS = (1, 16, 64, 256, 4096)
PRODUCT_TOKENS = (1, 8, 64, 512, 4096)


class Mixture(NamedTuple):
    """C of X experts that go from E to 2 F and back from F to E."""

    name: str
    X: int
    C: int
    E: int
    F: int
    bias: bool

    def products(self) -> tuple[tuple[str, int, int, bool], ...]:
        """Return name, outputs, inputs and gather of its two products."""
        return ("gate and up", 2 * self.F, self.E, True), ("down", self.E, self.F, False)


MIXTURES = (
    Mixture("qwen3-30b-a3b", X, C, E, 768, bias=False),
    Mixture("gpt-oss-20b", 32, 4, 2880, 2880, bias=True),
    Mixture("gpt-oss-120b", 128, 4, 2880, 2880, bias=True),
)


def _routes(T: int, num_experts: int = X, chosen: int = C) -> route_op.Routes:
    return route_op.route(randn(T, num_experts), chosen, renormalise=True)


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
    for mixture in MIXTURES:
        for name, outputs, inputs, gather in mixture.products():
            weights = [randn(mixture.X, outputs, inputs) for _ in range(2)]
            bias = randn(mixture.X, outputs) if mixture.bias else None
            for T in PRODUCT_TOKENS:
                order = order_op.expert_order(_routes(T, mixture.X, mixture.C), mixture.X)
                used = int((order.begins[1:] > order.begins[:-1]).sum())
                rows = T * mixture.C
                x = randn(T if gather else rows, inputs)
                few = 300 * used > rows  # products of fewer rows an expert wait for memory
                yield Case(
                    f"{mixture.name}, {name}, {T} tokens, {used} experts",
                    [partial(linear_op.expert_linear, x, weight, order, bias, gather=gather) for weight in weights],
                    bytes=2 * used * outputs * inputs if few else 0,
                    flops=0 if few else 2 * rows * outputs * inputs,
                )


def expert_sum() -> Iterator[Case]:
    for T in TOKENS:
        parts, shares = randn(T * C, E), torch.rand(T, C, device=CUDA)
        places = torch.randperm(T * C, device=CUDA, dtype=torch.int32).view(T, C)
        yield Case(f"{T} x {C} x {E}", [partial(sum_op.expert_sum, parts, places, shares)], bytes=2 * T * (C + 1) * E)

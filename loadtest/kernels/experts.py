"""Cases of what mixtures of experts add: routes in the shape of Qwen3-30B-A3B, products also in those of gpt-oss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import expert_choice as choice_op
from kernels import expert_linear as linear_op
from kernels import expert_order as order_op
from kernels import expert_sum as sum_op
from kernels import float4_expert_linear as float4_op
from kernels import grouped_expert_linear as grouped_op
from kernels import route as route_op
from kernels.few_rows import RmsNormWeights
from kernels.float4_experts import Float4Experts
from kernels.grouped_weight import GroupedWeight
from kernels.rms_norm import rms_norm
from loadtest.device_time import Run
from loadtest.kernels.case import CUDA, Case, randn

X, C, E = 128, 8, 2048
TOKENS = (1, 16, 64, 256, 4096)
PRODUCT_TOKENS = (1, 8, 64, 512, 4096)
Packed = Float4Experts | GroupedWeight


class Product(NamedTuple):
    """One of the products of an expert."""

    name: str
    outputs: int
    inputs: int
    gather: bool


class Mixture(NamedTuple):
    """C of X experts that go from E to 2 F and back from F to E."""

    name: str
    X: int
    C: int
    E: int
    F: int
    bias: bool

    def products(self) -> tuple[Product, Product]:
        """Return its two products."""
        return Product("gate and up", 2 * self.F, self.E, gather=True), Product("down", self.E, self.F, gather=False)


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


def expert_choice() -> Iterator[Case]:
    """Norm, router, route and order of few rows in one kernel; beside it the four, the router's product by cuBLAS."""
    for T in (1, 4, 8, 16):
        x, norm, weight = randn(T, E), RmsNormWeights(randn(E), 1e-6), randn(X, E)
        router = choice_op.Router(weight, None, C, renormalise=True)
        arrived = torch.zeros(choice_op.MAX_ROWS + 1, dtype=torch.int32, device=CUDA)

        def apart(x: Tensor = x, norm: RmsNormWeights = norm, weight: Tensor = weight) -> object:
            logits = functional.linear(rms_norm(x, norm.weight, norm.eps), weight)
            return order_op.expert_order(route_op.route(logits, C, renormalise=True), X)

        yield Case(
            f"{T} x {E} to {C} of {X}", [partial(choice_op.expert_choice, x, norm, router, arrived)],
            bytes=2 * X * E + 4 * T * E, rival="four kernels", rival_runs=[apart],
        )  # fmt: skip


def expert_order() -> Iterator[Case]:
    for T in TOKENS:
        routes = [_routes(T) for _ in range(3)]
        yield Case(f"{T} x {C} of {X}", [partial(order_op.expert_order, each, X) for each in routes], bytes=8 * T * C)


def expert_linear() -> Iterator[Case]:
    """The least is each weight that somebody chose, once; where that is less than the operations take, these."""
    for mixture in MIXTURES:
        for product in mixture.products():
            weights = [randn(mixture.X, product.outputs, product.inputs) for _ in range(2)]
            for step in _steps(mixture, product):
                yield step.case([partial(linear_op.expert_linear, step.x, weight, **step.rest) for weight in weights])


def float4_expert_linear() -> Iterator[Case]:
    """The same on 4 bit floats, beside bf16."""
    for mixture in MIXTURES:
        yield from _packed(mixture, "", float4_op.float4_expert_linear, _float4)


def grouped_expert_linear() -> Iterator[Case]:
    """The same on 4 bits, and on float8, with a scale for each 128 inputs."""
    yield from _packed(MIXTURES[0], ", 4 bit", grouped_op.grouped_expert_linear, partial(_grouped, bits=4))
    yield from _packed(MIXTURES[0], ", float8", grouped_op.grouped_expert_linear, partial(_grouped, bits=8))


def _packed(
    mixture: Mixture, what: str, op: Callable[..., Tensor], make: Callable[[int, Product], Packed]
) -> Iterator[Case]:
    for product in mixture.products():
        weights = [make(mixture.X, product) for _ in range(4)]
        dense = [randn(mixture.X, product.outputs, product.inputs) for _ in range(2)]
        for step in _steps(mixture, product):
            yield step.case(
                [partial(op, step.x, weight, **step.rest) for weight in weights],
                [partial(linear_op.expert_linear, step.x, weight, **step.rest) for weight in dense],
                what=what,
                of_bf16=weights[0].nbytes / dense[0].nbytes,
            )


def _float4(X: int, product: Product) -> Float4Experts:
    weight = Float4Experts.empty(X, product.outputs, product.inputs, CUDA)
    weight.words.random_(-(2**31), 2**31 - 1)
    weight.exponents.fill_(0x78787878)  # 2^-7
    return weight


def _grouped(X: int, product: Product, *, bits: int) -> GroupedWeight:
    rows, each = X * product.outputs, 8 // bits
    codes = torch.randint(0, 120, (rows, product.inputs // each), dtype=torch.uint8, device=CUDA)
    codes = codes if bits == 4 else codes.view(torch.float8_e4m3fn)
    scales = torch.rand(rows, product.inputs // 128, dtype=torch.float16, device=CUDA)
    return GroupedWeight.of(codes, scales, None, 8 if bits == 4 else 0, each, hopper=False, most=128)


@dataclass(frozen=True)
class Step:
    """Tokens before one of the products: `rest` are the arguments behind the weight."""

    name: str
    x: Tensor
    rest: dict[str, Any]
    used_weights: int  # of experts that somebody chose
    flops: int

    def case(self, runs: list[Run], rival_runs: Sequence[Run] = (), *, what: str = "", of_bf16: float = 1.0) -> Case:
        """Return the table's line; weights take `of_bf16` of bfloat16's bytes."""
        moved = int(2 * of_bf16 * self.used_weights)
        few = self.flops < 175 * moved  # an H200 multiplies so much while it copies a byte
        return Case(
            self.name + what,
            runs,
            moved if few else 0,
            0 if few else self.flops,
            "bf16" if rival_runs else "",
            rival_runs,
        )


def _steps(mixture: Mixture, product: Product) -> Iterator[Step]:
    for T in PRODUCT_TOKENS:
        order = order_op.expert_order(_routes(T, mixture.X, mixture.C), mixture.X)
        used = int((order.begins[1:] > order.begins[:-1]).sum())
        rows, weights = T * mixture.C, product.outputs * product.inputs
        bias = randn(mixture.X, product.outputs) if mixture.bias else None
        yield Step(
            f"{mixture.name}, {product.name}, {T} tokens, {used} experts",
            randn(T if product.gather else rows, product.inputs),
            {"order": order, "bias": bias, "gather": product.gather},
            used * weights,
            2 * rows * weights,
        )


def expert_sum() -> Iterator[Case]:
    for T in TOKENS:
        parts, shares = randn(T * C, E), torch.rand(T, C, device=CUDA)
        places = torch.randperm(T * C, device=CUDA, dtype=torch.int32).view(T, C)
        yield Case(f"{T} x {C} x {E}", [partial(sum_op.expert_sum, parts, places, shares)], bytes=2 * T * (C + 1) * E)

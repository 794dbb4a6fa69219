"""The feed-forward block of mixtures of experts: a router chooses few of many blocks for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import expert_choice, few_rows
from kernels.activation import SILU
from kernels.expert_choice import ExpertChoice, Router
from kernels.expert_order import expert_order
from kernels.expert_sum import expert_add, expert_sum
from kernels.quantize_rows import QuantizedRows
from kernels.rms_norm import rms_norm
from kernels.route import USUAL, Rule, route
from model_svc.layers.linear import Linear
from model_svc.layers.loader import USUAL_NAMES, ExpertNames, Loader
from model_svc.layers.mlp import GatedMlp


@dataclass(frozen=True)
class ExpertsConfig:
    """What differs between architectures: C of X experts with an inner size F, and whether their shares add up to 1.

    `act` is one of `kernels.activation`'s. `bias`: router and experts have biases. `rule`: how router logits become
    choices; `deciding` float32 [X] is added to scores that decide.
    """

    hidden: int
    inner: int
    num_experts: int
    num_chosen: int
    renormalise: bool = True
    act: int = SILU
    names: ExpertNames = USUAL_NAMES
    bias: bool = False
    rule: Rule = USUAL
    deciding: Tensor | None = None


class Experts:
    """The sum of what the chosen experts make of a token, weighed by the router's probabilities."""

    def __init__(self, loader: Loader, config: ExpertsConfig) -> None:
        if not 1 <= config.num_chosen <= config.num_experts:
            raise ValueError(f"{config.num_chosen} of {config.num_experts} experts cannot be chosen")
        self._config = config
        self._group = loader.group
        X, E, names, bias = config.num_experts, config.hidden, config.names, config.bias
        whole = loader.shard(1)  # every rank chooses for itself
        self._router = loader.columns((names.router,), (X,), E, (whole,), bias=bias)
        self._blocks = loader.experts(names, X, E, config.inner, config.act, bias=bias)
        self._arrived: Tensor | None = None

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        assert isinstance(x, Tensor)
        normed, routes, order = self._choice(x)
        out = expert_sum(self._blocks(normed, order), order.places, routes.shares)
        if self._group.size > 1:
            self._group.add_up(out)
        return out

    ends_norm = False  # experts take the normed rows themselves

    @property
    def serves_few_rows(self) -> bool:
        """Whether `add_few_rows` computes this block."""
        return self._router.dense is not None

    def rounds(self, x: Tensor) -> bool:  # noqa: ARG002 - as `GatedMlp.rounds`
        """Whether one of its products rounds rows like `x`."""
        return False

    def add_few_rows(
        self, norm: few_rows.RmsNormWeights, begun: few_rows.HalfNormed | None, total: Tensor,  # noqa: ARG002
        then: few_rows.RmsNormWeights | None,
    ) -> few_rows.HalfNormed | None:  # fmt: skip
        """Add the block's output for norm(total) to `total` [T, E] in place; may begin `then`, the norm of the sum."""
        if len(total) <= expert_choice.MAX_ROWS:
            normed, routes, order = self._choice_of_few(total, norm)
        else:
            normed, routes, order = self._choice(rms_norm(total, norm.weight, norm.eps, offset=norm.offset))
        parts, group = self._blocks(normed, order), self._group
        if group.size == 1:
            return expert_add(parts, order.places, routes.shares, total, then)
        if group.rank:  # the first adds to what was there, the others to nothing
            total.zero_()
        expert_add(parts, order.places, routes.shares, total)
        group.add_up(total)
        return None

    def _choice(self, normed: Tensor) -> ExpertChoice:
        config = self._config
        routes = route(
            self._logits(normed), config.num_chosen, renormalise=config.renormalise, rule=config.rule,
            bias=config.deciding,
        )  # fmt: skip
        return ExpertChoice(normed, routes, expert_order(routes, config.num_experts))

    def _choice_of_few(self, x: Tensor, norm: few_rows.RmsNormWeights) -> ExpertChoice:
        config, router = self._config, self._router.dense
        assert router is not None
        if self._arrived is None:
            self._arrived = torch.zeros(expert_choice.MAX_ROWS + 1, dtype=torch.int32, device=x.device)
        rule = Router(router.weight, router.bias, config.num_chosen, config.renormalise, config.rule, config.deciding)
        return expert_choice.expert_choice(x, norm, rule, self._arrived)

    def _logits(self, x: Tensor) -> Tensor:
        """Return the router's logits; where a bias decides, small differences do, so that they are not rounded."""
        if self._config.deciding is None:
            return self._router(x)
        logits = torch.empty(x.shape[0], self._config.num_experts, dtype=torch.float32, device=x.device)
        self._router.into(x, logits)
        return logits


class ExpertsBesideShared:
    """Experts, and one block for all tokens; with a `gate` each takes as much of that as the gate says (Qwen 2)."""

    def __init__(self, experts: Experts, shared: GatedMlp, gate: Linear | None = None) -> None:
        self._experts, self._shared, self._gate = experts, shared, gate

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        shared = self._shared(x)
        return self._experts(x) + (shared if self._gate is None else torch.sigmoid(self._gate(x)) * shared)

    ends_norm = True

    @property
    def serves_few_rows(self) -> bool:
        """Whether `add_few_rows` computes this block."""
        return self._gate is None and self._experts.serves_few_rows and self._shared.serves_few_rows

    def rounds(self, x: Tensor) -> bool:
        """Whether one of its products rounds rows like `x`."""
        return self._shared.rounds(x)

    def add_few_rows(
        self, norm: few_rows.RmsNormWeights, begun: few_rows.HalfNormed | None, total: Tensor,
        then: few_rows.RmsNormWeights | None,
    ) -> few_rows.HalfNormed | None:  # fmt: skip
        """Add the block's output for norm(total) to `total` [T, E] in place, as `GatedMlp.add_few_rows` does."""
        beside = self._shared.gated_few_rows(norm, begun, total)  # before experts change the sum
        self._experts.add_few_rows(norm, None, total, None)
        return self._shared.add_gated(beside, total, then)

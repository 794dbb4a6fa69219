"""The feed-forward block of mixtures of experts: a router chooses few of many blocks for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.activation import SILU
from kernels.expert_order import expert_order
from kernels.expert_sum import expert_sum
from kernels.quantize_rows import QuantizedRows
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

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        assert isinstance(x, Tensor)
        config = self._config
        routes = route(
            self._logits(x), config.num_chosen, renormalise=config.renormalise, rule=config.rule, bias=config.deciding
        )
        order = expert_order(routes, config.num_experts)
        out = expert_sum(self._blocks(x, order), order.places, routes.shares)
        if self._group.size > 1:
            self._group.add_up(out)
        return out

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

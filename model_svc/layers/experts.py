"""The feed-forward block of mixtures of experts: a router chooses few of many blocks for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.expert_order import expert_order
from kernels.expert_sum import expert_sum
from kernels.quantize_rows import QuantizedRows
from kernels.route import route
from model_svc.layers.loader import USUAL_NAMES, ExpertNames, Loader
from model_svc.layers.mlp import GatedMlp, activation_named


@dataclass(frozen=True)
class ExpertsConfig:
    """What differs between architectures: C of X experts with an inner size F, and whether their shares add up to 1."""

    hidden: int
    inner: int
    num_experts: int
    num_chosen: int
    renormalise: bool
    act: str = "silu"
    names: ExpertNames = USUAL_NAMES


class Experts:
    """The sum of what the chosen experts make of a token, weighed by the router's probabilities."""

    def __init__(self, loader: Loader, config: ExpertsConfig) -> None:
        if not 1 <= config.num_chosen <= config.num_experts:
            raise ValueError(f"{config.num_chosen} of {config.num_experts} experts cannot be chosen")
        self._config = config
        self._group = loader.group
        X, E, act = config.num_experts, config.hidden, activation_named(config.act)
        self._router = loader.columns(("gate",), (X,), E, (loader.shard(1),))  # every rank chooses for itself
        self._blocks = loader.experts(config.names, X, E, config.inner, act)

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        assert isinstance(x, Tensor)
        config = self._config
        routes = route(self._router(x), config.num_chosen, renormalise=config.renormalise)
        order = expert_order(routes, config.num_experts)
        out = expert_sum(self._blocks(x, order), order.places, routes.shares)
        if self._group.size > 1:
            self._group.add_up(out)
        return out


class ExpertsBesideShared:
    """Experts, and one block for all tokens, which each token takes as much of as a gate of its own says (Qwen 2)."""

    def __init__(self, experts: Experts, shared: GatedMlp, loader: Loader, hidden: int) -> None:
        self._experts, self._shared = experts, shared
        self._gate = loader.columns(("shared_expert_gate",), (1,), hidden, (loader.shard(1),))

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        return self._experts(x) + torch.sigmoid(self._gate(x)) * self._shared(x)

"""The feed-forward block without a gate: down(act(up(x)))."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels.quantize_rows import QuantizedRows
from model_svc.layers.loader import Loader

Activation = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square()


_ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu2": _relu_squared,
    "silu": functional.silu,
}


def activation_of(name: str) -> Activation:
    """Return the activation of a config's name. Raises ValueError."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not supported here; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


class PlainMlp:
    """`names` are those of the two products."""

    def __init__(
        self,
        loader: Loader,
        hidden: int,
        inner: int,
        act: Activation,
        *,
        bias: bool = False,
        names: tuple[str, str] = ("up_proj", "down_proj"),
    ) -> None:
        self._up = loader.columns((names[0],), (inner,), hidden, (loader.shard(inner),), bias=bias)
        self._down = loader.rows(names[1], hidden, inner, bias=bias)
        self._act = act

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        return self._down(self._act(self._up(x)))


class Xielu:
    """Apertus' activation, with two learned numbers a layer (arXiv 2411.13010): a parabola, an exponential below 0."""

    def __init__(self, loader: Loader) -> None:
        above, below = (functional.softplus(loader.exact(name, (1,))) for name in ("alpha_p", "alpha_n"))
        self._beta, self._nearest = loader.exact("beta", ()), loader.exact("eps", ())
        self._above, self._below = above, self._beta + below

    def __call__(self, x: Tensor) -> Tensor:
        """Return the activation of `x`, computed in float32."""
        wide = x.float()
        below = (torch.minimum(wide, self._nearest).expm1() - wide) * self._below
        return (torch.where(wide > 0, self._above * wide.square(), below) + self._beta * wide).to(x.dtype)

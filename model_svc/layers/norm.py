"""Norms: RMS norm (with Gemma's offset) and layer norm, alone or after the residual addition."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from kernels import rms_norm
from kernels.few_rows import RmsNormWeights
from kernels.float8_weight import Float8Weight
from kernels.quantize_rows import QuantizedRows, normed_rows
from model_svc.layers.group import Group
from model_svc.layers.loader import Loader
from model_svc.weights.source import Shard


class Norm(Protocol):
    """A norm over the last dimension."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of `x` [..., E]."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` in place and return the norm of the sum."""
        ...


class RmsNorm:
    """y = x / rms(x) * (offset + weight)."""

    def __init__(self, loader: Loader, name: str, size: int, eps: float, *, offset: float = 0.0) -> None:
        self._weight = loader.dense(f"{name}.weight", (size,))
        self._eps = eps
        self._offset = offset

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of `x` [..., E]."""
        return rms_norm.rms_norm(x, self._weight, self._eps, offset=self._offset)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` in place and return the norm of the sum."""
        return rms_norm.add_rms_norm(x, residual, self._weight, self._eps, offset=self._offset)

    def quantized(self, x: Tensor, residual: Tensor | None, weight: Float8Weight) -> QuantizedRows:
        """Add `x` to `residual`, if there is one, in place; return the norm of the sum as `weight` multiplies it."""
        return normed_rows(x, self.weights, residual, by_blocks=weight.by_blocks)

    @property
    def weights(self) -> RmsNormWeights:
        """The norm as a product that begins with it wants it."""
        return RmsNormWeights(self._weight, self._eps, self._offset)


class SummedRmsNorm:
    """An RMS norm over what lies on several ranks, each of which has as much of it."""

    def __init__(self, weight: Tensor, group: Group, eps: float, *, offset: float) -> None:
        self._weight = weight.float() + offset
        self._group = group
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return this rank's part of the norm, for its part `x` [T, E / size]."""
        wide = x.float()
        means = wide.square().mean(-1, keepdim=True)
        self._group.add_up(means)
        return (wide * (means / self._group.size + self._eps).rsqrt() * self._weight).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` in place and return the norm of the sum."""
        return self(residual.add_(x))


def wide_norm(loader: Loader, name: str, size: int, shard: Shard, eps: float, *, offset: float) -> Norm:
    """Return an RMS norm over a projection that is cut between ranks."""
    if loader.group.size == 1:
        return RmsNorm(loader, name, size, eps, offset=offset)
    return SummedRmsNorm(loader.part(f"{name}.weight", (size,), shard), loader.group, eps, offset=offset)


class LayerNorm:
    """y = (x - mean) / sqrt(var + eps) * (offset + weight) + bias, in float32."""

    def __init__(
        self, loader: Loader, name: str, size: int, eps: float, *, bias: bool = False, offset: float = 0.0
    ) -> None:
        self._weight = loader.dense(f"{name}.weight", (size,)).float() + offset
        self._bias = loader.dense(f"{name}.bias", (size,)).float() if bias else None
        self._size = size
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of `x` [..., E]."""
        return functional.layer_norm(x.float(), (self._size,), self._weight, self._bias, self._eps).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` in place and return the norm of the sum."""
        residual.add_(x)
        return self(residual)

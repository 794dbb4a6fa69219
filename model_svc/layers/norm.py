"""Norms: RMS norm (with Gemma's offset) and Cohere's bias-free layer norm, alone or after the residual addition."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from kernels import rms_norm
from kernels.few_rows import RmsNormWeights
from model_svc.layers.loader import Loader


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

    @property
    def weights(self) -> RmsNormWeights:
        """The norm as a product that begins with it wants it."""
        return RmsNormWeights(self._weight, self._eps, self._offset)


class LayerNorm:
    """y = (x - mean) / sqrt(var + eps) * weight, in float32."""

    def __init__(self, loader: Loader, name: str, size: int, eps: float) -> None:
        self._weight = loader.dense(f"{name}.weight", (size,)).float()
        self._size = size
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of `x` [..., E]."""
        return functional.layer_norm(x.float(), (self._size,), self._weight, None, self._eps).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` in place and return the norm of the sum."""
        residual.add_(x)
        return self(residual)

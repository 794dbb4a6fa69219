"""What a layer needs to fetch its weights: the source, the quantization method, and its place in the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model_svc.layers.linear import Linear
from model_svc.quant.method import QuantMethod
from model_svc.weights.source import Shard, WeightSource


@dataclass(frozen=True)
class Loader:
    """A place in the checkpoint (`prefix`) from which tensors are pulled for rank `rank` of `ranks`."""

    source: WeightSource
    method: QuantMethod
    prefix: str = ""
    rank: int = 0
    ranks: int = 1

    def at(self, name: str | int) -> Loader:
        """Return the loader of a part below this one."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def has(self, name: str) -> bool:
        """Tell whether a tensor of this name is below this place."""
        return self.source.has(self.prefix + name)

    def dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Fetch a tensor that is used as numbers (a norm's weight), whole."""
        return self.method.dense(self.source.get(self.prefix + name, shape))

    def columns(self, names: Sequence[str], outs: Sequence[int], size: int, *, bias: bool = False) -> Linear:
        """Fetch projections from `size` inputs that are stacked and cut along their outputs (q, k, v; gate and up)."""
        shard = Shard(0, self.rank, self.ranks)
        parts = [
            self.source.get_shard(f"{self.prefix}{name}.weight", (out, size), shard)
            for name, out in zip(names, outs, strict=True)
        ]
        return Linear(self.method.linear(parts, self._stacked_bias(names, outs, shard) if bias else None))

    def rows(self, name: str, out: int, size: int, *, bias: bool = False) -> Linear:
        """Fetch a projection that is cut along its inputs (o, down); ranks add their results up."""
        part = self.source.get_shard(f"{self.prefix}{name}.weight", (out, size), Shard(1, self.rank, self.ranks))
        offset = self.dense(f"{name}.bias", (out,)) if bias and self.rank == 0 else None
        return Linear(self.method.linear([part], offset))

    def _stacked_bias(self, names: Sequence[str], outs: Sequence[int], shard: Shard) -> Tensor:
        parts = [
            self.method.dense(self.source.get_shard(f"{self.prefix}{name}.bias", (out,), shard))
            for name, out in zip(names, outs, strict=True)
        ]
        return torch.cat(parts)

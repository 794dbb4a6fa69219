"""What a layer needs to fetch its weights: the source, the quantization method, and its place in the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from model_svc.layers.adapters import Adapters, LowRank
from model_svc.layers.group import ALONE, Group
from model_svc.layers.linear import Linear
from model_svc.layers.parallel_linear import SummedLinear
from model_svc.quant.method import ExpertsOp, QuantMethod
from model_svc.weights.source import Shard, Stored, WeightSource, narrow
from model_svc.weights.stored.tensor import QuantizedTensor


class ExpertNames(NamedTuple):
    """What a checkpoint calls the three matrices of an expert, or of a lone block, and the router before experts."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    router: str = "gate"


class Run(NamedTuple):
    """Some outputs in a row."""

    begin: int
    width: int


USUAL_NAMES = ExpertNames()
_BLOCK = 32  # numbers that most quantized forms store together


@dataclass(frozen=True)
class Loader:
    """A place in the checkpoint (`prefix`) from which tensors are pulled for one rank of `group`."""

    source: WeightSource
    method: QuantMethod
    prefix: str = ""
    group: Group = ALONE
    adapters: Adapters | None = None

    def at(self, name: str | int) -> Loader:
        """Return the loader of a part below this one."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def has(self, name: str) -> bool:
        """Tell whether a tensor of this name is below this place."""
        return self.source.has(self.prefix + name)

    def leave(self) -> None:
        """Count all tensors below this place as used: another stage fetches them, and sees if it leaves any."""
        for name in self.source.names():
            if name.startswith(self.prefix):
                self.source.ignore(name)
        if self.adapters is not None:
            self.adapters.leave(self.prefix)

    def dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Fetch a tensor that is used as numbers (a norm's weight), whole."""
        return self.method.dense(self.source.get(self.prefix + name, shape))

    def exact(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Fetch a tensor that decides something, whole and in float32."""
        return self.method.exact(self.source.get(self.prefix + name, shape))

    def kv_scale(self, names: Sequence[str]) -> float:
        """Return the scale of a cache in 8 bits that goes by some of `names`, 1 where there is none that can be one.

        Of several (one a head) it is the largest: what is smaller loses nothing by that, codes have exponents.
        """
        found = [name for name in names if self.has(name) and self.prefix + name in self.source.names()]
        scales = [float(self.source.get_any(self.prefix + name).max()) for name in found]
        return next((scale for scale in scales if 0 < scale < math.inf), 1.0)

    def part(self, name: str, shape: tuple[int, ...], shard: Shard) -> Tensor:
        """Fetch a part of a tensor that is used as numbers."""
        return self.method.dense(self.source.get_shard(self.prefix + name, shape, shard))

    def dense_runs(self, name: str, shape: tuple[int, ...], runs: Sequence[Run]) -> Tensor:
        """Fetch runs of a tensor's first dimension, which is used as numbers, one after another."""
        whole = self.source.get(self.prefix + name, shape)
        if sum(run.width for run in runs) == shape[0]:
            return self.method.dense(whole)
        return self.method.dense(torch.cat([whole.narrow(0, *run) for run in runs]))

    def shard(self, pieces: int) -> Shard:
        """Return which of `pieces` (heads, say) are this rank's; where these are fewer than ranks, some share one."""
        rank, size = self.group.rank, self.group.size
        return Shard(0, rank, size) if pieces >= size else Shard(0, rank * pieces // size, pieces)

    def columns(
        self, names: Sequence[str], outs: Sequence[int], size: int, shards: Sequence[Shard], *, bias: bool = False
    ) -> Linear:
        """Fetch projections from `size` inputs that are stacked and cut along their outputs (q, k, v; gate and up).

        One name for several `outs`: the checkpoint holds them as one tensor.
        """
        parts = self._parts("weight", names, [(out, size) for out in outs], shards)
        offset = None
        if bias:
            biases = self._parts("bias", names, [(out,) for out in outs], shards)
            offset = torch.cat([self.method.dense(part) for part in biases])
        return Linear(self.method.linear(parts, offset), self._low_rank(names, outs, size, cut=shards))

    def runs(self, name: str, rows: int, size: int, runs: Sequence[Run]) -> list[Stored]:
        """Fetch runs of the outputs of a projection from `size` inputs, which has `rows` of them."""
        whole = self.source.get_shard(f"{self.prefix}{name}.weight", (rows, size))
        if isinstance(whole, QuantizedTensor) and len(runs) > 1:  # in one piece: packed products are made of tiles
            return [whole.rows(torch.cat([torch.arange(begin, begin + width) for begin, width in runs]))]
        return [narrow(whole, 0, run.begin, run.width) for run in runs]

    def stacked(self, parts: Sequence[Stored]) -> Linear:
        """Return the projection that has these outputs one after another; no adapter adds to it."""
        return Linear(self.method.linear(parts, None))

    def rows(self, name: str, out: int, size: int, *, bias: bool = False) -> Linear:
        """Fetch a projection that is cut along its inputs (o, down); ranks add their results up."""
        rank, ranks = self.group.rank, self.group.size
        own = Shard(1, rank, ranks)
        part = self.source.get_shard(f"{self.prefix}{name}.weight", (out, size), own)
        low_rank = self._low_rank((name,), (out,), size, inputs=own)
        offset = self.dense(f"{name}.bias", (out,)) if bias else None
        if ranks == 1:
            return Linear(self.method.linear([part], offset), low_rank)
        if offset is not None and rank:
            offset = torch.zeros_like(offset)  # it is added once, and all ranks take the same path
        return SummedLinear(self.method.linear([part], offset), self.group, low_rank)

    def experts(
        self, names: ExpertNames, num_experts: int, hidden: int, inner: int, act: int, *, bias: bool = False
    ) -> ExpertsOp:
        """Fetch the feed-forward blocks of experts, cut along their inner size: what ranks compute is to be added.

        Where that would cut blocks (gpt-oss, 2,880 wide, on four ranks) some ranks have one more than others.
        """

        def fetched(expert: int, name: str, shape: tuple[int, int], dim: int) -> Stored:
            path = f"{self.prefix}experts.{expert}.{name}.weight"
            return self.source.get_shard(path, shape, self._inner(dim))

        each = range(num_experts)
        gate_up = [[fetched(n, name, (inner, hidden), 0) for name in (names.gate, names.up)] for n in each]
        down = [fetched(n, names.down, (hidden, inner), 1) for n in each]
        biases = self._expert_biases(names, num_experts, hidden, inner) if bias else None
        return self.method.experts(gate_up, down, act, biases)

    def _expert_biases(self, names: ExpertNames, num_experts: int, hidden: int, inner: int) -> tuple[Tensor, Tensor]:
        """Fetch the biases of experts, [X, 2F] and [X, E]; the second are added once, by the first rank."""

        def all_of(name: str, size: int) -> Tensor:
            paths = (f"{self.prefix}experts.{n}.{name}.bias" for n in range(num_experts))
            return torch.stack([self.source.get(path, (size,)) for path in paths])

        span = self._inner(1).span(inner)
        halves = [all_of(name, inner).narrow(1, *span) for name in (names.gate, names.up)]
        rank, down = self.group.rank, all_of(names.down, hidden)
        return self.method.dense(torch.cat(halves, 1)), self.method.dense(torch.zeros_like(down) if rank else down)

    def _inner(self, dim: int) -> Shard:
        """Return this rank's part of what experts are wide inside."""
        return Shard(dim, self.group.rank, self.group.size, unit=_BLOCK)

    def _low_rank(
        self,
        names: Sequence[str],
        outs: Sequence[int],
        size: int,
        cut: Sequence[Shard] = (),
        inputs: Shard | None = None,
    ) -> LowRank | None:
        """Fetch what adapters add behind a product, if there are any."""
        if self.adapters is None:
            return None
        return self.adapters.part([self.prefix + name for name in names], outs, size, cut, inputs)

    def _parts(
        self, kind: str, names: Sequence[str], shapes: Sequence[tuple[int, ...]], shards: Sequence[Shard]
    ) -> list[Stored]:
        paths = [f"{self.prefix}{name}.{kind}" for name in names]
        if len(paths) == len(shapes):
            return [self.source.get_shard(*each) for each in zip(paths, shapes, shards, strict=True)]
        rows = sum(shape[0] for shape in shapes)
        whole = self.source.get_shard(paths[0], (rows, *shapes[0][1:]))
        if self.group.size == 1:
            return [whole]
        parts, begin = [], 0
        for (total, *_), shard in zip(shapes, shards, strict=True):
            width = total // shard.size
            parts.append(narrow(whole, 0, begin + shard.rank * width, width))
            begin += total
        return parts

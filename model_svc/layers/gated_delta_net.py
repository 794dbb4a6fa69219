"""A layer with a state of fixed size instead of attention: project, convolve, gated delta rule, gated norm, project."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.causal_conv import causal_conv
from kernels.fading import Fading
from kernels.gated_delta import gated_delta
from kernels.gated_norm import gated_norm
from kernels.quantize_rows import QuantizedRows
from model_svc.layers.group import Group
from model_svc.layers.linear import Linear
from model_svc.layers.loader import Loader, Run
from model_svc.layers.mixer import Mixer
from model_svc.layers.step import LayerKv, StepBatch


@dataclass(frozen=True)
class DeltaNetConfig:
    """The sizes of a layer: K key heads of Dk and V value heads of Dv, and a convolution over W tokens.

    `in_turns`: a key head's value heads do not follow one another, but all key heads take turns (GGUF files).
    """

    hidden: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm_eps: float
    in_turns: bool = False

    @property
    def keys(self) -> int:
        """How many numbers the queries, and the keys, of a token have."""
        return self.num_key_heads * self.key_dim

    @property
    def values(self) -> int:
        """How many numbers the values of a token have."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """How many numbers of a token go through the convolution."""
        return 2 * self.keys + self.values

    def share(self, group: Group) -> DeltaNetConfig:
        """Return the sizes of a rank's part: value heads are dealt out, where key heads are fewer ranks share one.

        Raises ValueError where key heads take turns.
        """
        if self.in_turns and group.size > 1:
            raise ValueError("value heads as GGUF files have them are not dealt out to ranks; set tensor_parallel to 1")
        return replace(
            self,
            num_key_heads=max(1, self.num_key_heads // group.size),
            num_value_heads=self.num_value_heads // group.size,
        )


class GatedDeltaNet(Mixer):
    """One layer's gated delta net, `linear_attn` of the checkpoint."""

    def __init__(self, loader: Loader, config: DeltaNetConfig) -> None:
        self._config = own = config.share(loader.group)
        rank, size = loader.group.rank, loader.group.size
        heads = _Heads(
            config, Run(rank * config.num_key_heads // size, own.num_key_heads),
            Run(rank * own.num_value_heads, own.num_value_heads),
        )  # fmt: skip
        self._inputs, self._changes = _inputs(loader, heads), _changes(loader, heads)
        shape, V = (config.channels, 1, config.conv_width), config.num_value_heads
        self._filters = loader.dense_runs("conv1d.weight", shape, heads.channels).view(-1, config.conv_width)
        rate, self._bias = (loader.exact(name, (V,)).narrow(0, *heads.values) for name in ("A_log", "dt_bias"))
        self._rate = rate.exp()
        self._norm = loader.dense("norm.weight", (config.value_dim,))
        self._out = loader.rows("out_proj", config.hidden, config.values)

    def _read(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the heads read, normed and gated, [T, V * Dv]."""
        assert isinstance(x, Tensor)
        config, (windows, states), T = self._config, kv, x.shape[0]
        K, V, Dk, Dv = config.num_key_heads, config.num_value_heads, config.key_dim, config.value_dim
        taken, gate = torch.split(self._inputs(x), [config.channels, config.values], dim=-1)
        b, a = torch.split(self._changes(x), [V, V], dim=-1)
        sequences, longest = (step.slots, step.query_start, step.context_lens), step.max_query_len
        mixed = causal_conv(taken, self._filters, windows, *sequences, max_query_len=longest)
        q, k, v = torch.split(mixed, [config.keys, config.keys, config.values], dim=-1)
        read = gated_delta(
            q.view(T, K, Dk), k.view(T, K, Dk), v.view(T, V, Dv), Fading(a, b, self._rate, self._bias), states,
            *sequences, max_query_len=longest, in_turns=config.in_turns,
        )  # fmt: skip
        return gated_norm(read, gate.view(T, V, Dv), self._norm, config.norm_eps).view(T, -1)


@dataclass(frozen=True)
class _Heads:
    """Which key heads and value heads are a rank's, of the whole layer's sizes."""

    whole: DeltaNetConfig
    keys: Run
    values: Run

    @property
    def channels(self) -> tuple[Run, Run, Run]:
        """Where its queries, keys and values are among those of all heads."""
        Dk, Dv, (key, num_keys), (value, num_values) = self.whole.key_dim, self.whole.value_dim, self.keys, self.values
        queries = Run(key * Dk, num_keys * Dk)
        return (
            queries,
            Run(self.whole.keys + queries.begin, queries.width),
            Run(2 * self.whole.keys + value * Dv, num_values * Dv),
        )

    def in_groups(self, begin: int, width: int, row: int) -> list[Run]:
        """Return where numbers of its value heads are, `width` each, of rows `row` a key head from `begin` on."""
        group = self.whole.num_value_heads // self.whole.num_key_heads
        first, end = self.values.begin, self.values.begin + self.values.width
        runs = []
        for key in range(self.keys.begin, self.keys.begin + self.keys.width):
            own, last = max(first, key * group), min(end, (key + 1) * group)
            runs.append(Run(key * row + begin + (own - key * group) * width, (last - own) * width))
        return runs


def _inputs(loader: Loader, heads: _Heads) -> Linear:
    """Fetch the product that makes queries, keys, values and gates.

    Checkpoints have them in pieces (Qwen 3.5, GGUF files), or those of one key head beside another's (Qwen 3 Next).
    """
    config, Dv = heads.whole, heads.whole.value_dim
    K, E, Dk, values = config.num_key_heads, config.hidden, config.key_dim, config.num_value_heads * Dv
    if not loader.has("in_proj_qkv.weight"):
        row = 2 * Dk + 2 * (values // K)
        own = range(heads.keys.begin, heads.keys.begin + heads.keys.width)
        runs = [Run(head * row + begin, Dk) for begin in (0, Dk) for head in own]
        runs += heads.in_groups(2 * Dk, Dv, row) + heads.in_groups(2 * Dk + values // K, Dv, row)
        return loader.stacked(loader.runs("in_proj_qkvz", K * row, E, runs))
    if loader.group.size == 1:
        return _in_pieces(loader, ("in_proj_qkv", "in_proj_z"), (config.channels, values), E)
    qkv = loader.runs("in_proj_qkv", config.channels, E, heads.channels)
    return loader.stacked(qkv + loader.runs("in_proj_z", values, E, [Run(*(Dv * each for each in heads.values))]))


def _changes(loader: Loader, heads: _Heads) -> Linear:
    """Fetch the product that makes what a token may change, in pieces or by key head."""
    K, V, E = heads.whole.num_key_heads, heads.whole.num_value_heads, heads.whole.hidden
    if not loader.has("in_proj_b.weight"):
        runs = heads.in_groups(0, 1, 2 * V // K) + heads.in_groups(V // K, 1, 2 * V // K)
        return loader.stacked(loader.runs("in_proj_ba", 2 * V, E, runs))
    if loader.group.size == 1:
        return _in_pieces(loader, ("in_proj_b", "in_proj_a"), (V, V), E)
    return loader.stacked(
        [part for name in ("in_proj_b", "in_proj_a") for part in loader.runs(name, V, E, [heads.values])]
    )


def _in_pieces(loader: Loader, names: tuple[str, str], outs: tuple[int, int], size: int) -> Linear:
    return loader.columns(names, outs, size, (loader.shard(1),) * 2)

"""Paged attention with rotary positions: project, norm heads if the model does, rotate, store, attend, project back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels import few_rows
from kernels.few_rows_attention import MAX_ROWS, few_rows_attention
from kernels.float8_kv import KvScales
from kernels.norm_heads import HeadNorms, norm_heads
from kernels.paged_attention import paged_attention
from kernels.quantize_rows import QuantizedRows
from kernels.rope import rope, rope_store_kv
from kernels.store_kv import store_kv
from model_svc.layers.linear import Linear
from model_svc.layers.loader import Loader
from model_svc.layers.mixer import Mixer
from model_svc.layers.norm import Norm, RmsNorm, wide_norm
from model_svc.layers.rope import RopeTables
from model_svc.layers.step import LayerKv, StepBatch
from model_svc.weights.kv_scales import K_SCALES, V_SCALES


@dataclass(frozen=True)
class AttentionConfig:
    """What differs between architectures.

    `norm_qk`: RMS norm of queries and keys over each head, over each head once it is `rotated`, or over the whole
    projection (before the heads are split).
    `window`: a query sees that many last keys. `stretch` float32 [P] is what queries are multiplied with, by position.
    `fused`: the checkpoint's own name of a fused qkv tensor; `out`: that of the last product. `sinks`: each head has a
    logit of its own beside those of keys, which takes a share of attention and gives nothing (gpt-oss).
    `gated`: beside each head's query `q_proj` makes a gate, whose sigmoid its output is multiplied with (Qwen 3 Next).
    """

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None = None
    bias: bool = False
    out_bias: bool = False
    window: int | None = None
    softcap: float | None = None
    norm_qk: Literal["", "head", "rotated", "whole"] = ""
    norm_names: tuple[str, str] = ("q_norm", "k_norm")
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    interleaved: bool = False
    fused: str | None = None
    out: str = "o_proj"
    stretch: Tensor | None = None
    sinks: bool = False
    gated: bool = False


class Attention(Mixer):
    """One layer's attention. Without `rope` positions are not encoded (NoPE layers).

    Raises ValueError for a scale that is not positive.
    """

    def __init__(self, loader: Loader, config: AttentionConfig, rope: RopeTables | None) -> None:
        self._config = config
        self._rope = rope
        D = config.head_dim
        own, shared = loader.shard(config.num_heads), loader.shard(config.num_kv_heads)
        self.num_heads = config.num_heads // own.size
        self.num_kv_heads = config.num_kv_heads // shared.size
        self._scale = D**-0.5 if config.scale is None else config.scale
        if self._scale <= 0:
            raise ValueError(f"scores cannot be multiplied with {self._scale}")
        q, kv = config.num_heads * D, config.num_kv_heads * D
        names = (config.fused,) if config.fused else ("q_proj", "k_proj", "v_proj")
        outs, shards = (q * (1 + config.gated), kv, kv), (own, shared, shared)
        self._qkv = loader.columns(names, outs, config.hidden, shards, bias=config.bias)
        self._out = loader.rows(config.out, config.hidden, q, bias=config.out_bias)
        self._sinks = loader.part("sinks", (config.num_heads,), own) if config.sinks else None
        self._scales = KvScales(loader.kv_scale(K_SCALES), loader.kv_scale(V_SCALES))
        self._arrived: Tensor | None = None
        self._q_norm: Norm | None = None
        self._k_norm: Norm | None = None
        if config.norm_qk in ("head", "rotated"):
            self._q_norm, self._k_norm = (
                RmsNorm(loader, name, D, config.norm_eps, offset=config.norm_offset) for name in config.norm_names
            )
        elif config.norm_qk:
            self._q_norm, self._k_norm = (
                wide_norm(loader, name, size, shard, config.norm_eps, offset=config.norm_offset)
                for name, size, shard in zip(config.norm_names, (q, kv), (own, shared), strict=True)
            )

    @property
    def first(self) -> Linear:
        """The product that its input goes to."""
        return self._qkv

    def rounds(self, x: Tensor) -> bool:
        """Whether one of its products rounds rows like `x`, which products of few rows do not."""
        return self._qkv.rounds(x) is not None or self._out.rounds(x) is not None

    def _read(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the heads saw, [T, H * D]."""
        q, k, v, gate = self._split(self._qkv(x))
        cache = kv[0], kv[1]
        if self._config.stretch is not None:
            q = q * self._config.stretch[step.positions, None, None].to(q.dtype)
        tables = self._tables(step)
        if tables is None:
            store_kv(k, v, *cache, step.slot_mapping, self._scales)
        elif self._config.norm_qk == "rotated":
            rope(q, k, *tables, step.positions, interleaved=self._config.interleaved)
            q, k = self._normed(q, k)
            store_kv(k, v, *cache, step.slot_mapping, self._scales)
        else:
            rope_store_kv(
                q, k, v, *tables, step.positions, *cache, step.slot_mapping, self._scales,
                interleaved=self._config.interleaved,
            )  # fmt: skip
        out = self._paged(q, step, cache)
        return out if gate is None else out * torch.sigmoid(gate).flatten(1)

    def _tables(self, step: StepBatch) -> RopeTables | None:
        """Return the tables that `step.positions` are rows of; None: heads do not turn."""
        return None if self._rope is None else step.rope or self._rope

    def _paged(self, q: Tensor, step: StepBatch, cache: tuple[Tensor, Tensor]) -> Tensor:
        """Return attention [T, H * D] of `q` [T, H, D] over what the cache holds, this step's tokens among it."""
        out = paged_attention(
            q, *cache, step.block_tables, step.query_start, step.context_lens,
            scale=self._scale, window=self._config.window, softcap=self._config.softcap, sinks=self._sinks,
            scales=self._scales, max_query_len=step.max_query_len, max_context_len=step.max_context_len,
            limits=step.limits,
        )  # fmt: skip
        return out.view(q.shape[0], -1)

    @property
    def serves_few_rows(self) -> bool:
        """Whether `add_few_rows` computes this layer."""
        config = self._config
        turned = self._rope is not None and config.norm_qk in ("", "head") and config.stretch is None
        return turned and not config.gated and self._qkv.serves_few_rows and self._out.serves_few_rows

    @property
    def _turns_in_product(self) -> bool:
        """Whether nothing but a rotation of whole heads follows their product, so that it can turn and store."""
        config = self._config
        whole = self._rope is not None and 2 * self._rope.cos.shape[1] == config.head_dim and not config.interleaved
        return whole and not config.norm_qk and self._qkv.bias is None and _is_even(config.head_dim)

    @property
    def _attends_to_all(self) -> bool:
        """Whether heads see all keys and these alone, as `few_rows_attention` has them."""
        config = self._config
        bare = config.window is None and config.softcap is None and not config.sinks
        return bare and _is_even(config.head_dim) and self.num_heads <= 16 * self.num_kv_heads

    def add_few_rows(
        self, norm: few_rows.RmsNormWeights, begun: few_rows.HalfNormed | None, total: Tensor, step: StepBatch,
        kv: LayerKv, then: few_rows.RmsNormWeights | None,
    ) -> few_rows.HalfNormed | None:  # fmt: skip
        """Add the layer's output for norm(total) to `total` [T, E] in place.

        `norm` may be `begun`; so may `then`, the norm of the sum, which is returned.
        """
        cache = kv[0], kv[1]
        qkv = self._project_few_rows(norm, begun, total, step, cache)
        if step.max_query_len > 1 or not self._attends_to_all:
            q = qkv.view(total.shape[0], -1, self._config.head_dim)[:, : self.num_heads]
            out = self._paged(q, step, cache)
        else:
            if self._arrived is None:
                self._arrived = torch.zeros(MAX_ROWS * self.num_kv_heads, dtype=torch.int32, device=total.device)
            out = few_rows_attention(
                qkv, *cache, step.block_tables, step.context_lens, self._scale, self._arrived, self._scales
            )  # fmt: skip
        return self._out.add_few_rows(out, total, then)

    def _project_few_rows(
        self, norm: few_rows.RmsNormWeights, begun: few_rows.HalfNormed | None, total: Tensor, step: StepBatch,
        cache: tuple[Tensor, Tensor],
    ) -> Tensor:  # fmt: skip
        """Return queries, keys and values [T, (H + 2K) D] of norm(total), turned; keys and values are in `cache`."""
        tables = self._tables(step)
        assert tables is not None
        D, product = self._config.head_dim, self._qkv
        turn = few_rows.Rotation(*tables, step.positions, *cache, step.slot_mapping, self._scales)
        if self._turns_in_product:
            return few_rows.norm_qkv(total, norm, product.weight, D, turn, product.arrived, begun)
        qkv = few_rows.norm_linear(total, norm, product.weight, product.bias, product.arrived, begun)
        norm_heads(qkv, D, turn, self._head_norms(), interleaved=self._config.interleaved)
        return qkv

    def _head_norms(self) -> HeadNorms | None:
        if not self._config.norm_qk:
            return None
        assert isinstance(self._q_norm, RmsNorm)
        assert isinstance(self._k_norm, RmsNorm)
        q, k = self._q_norm.weights, self._k_norm.weights
        return HeadNorms(q.weight, k.weight, q.eps, q.offset)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Cut the fused row into q [T, H, D], k, v [T, K, D] and gates [T, H, D], norm q and k where the model does."""
        H, K, D = self.num_heads, self.num_kv_heads, self._config.head_dim
        q, k, v = torch.split(qkv, [H * D * (1 + self._config.gated), K * D, K * D], dim=-1)
        if self._config.norm_qk == "whole":
            q, k = self._normed(q, k)
        T = qkv.shape[0]
        k, v, gate = k.view(T, K, D), v.view(T, K, D), None
        q = q.view(T, H, -1)
        if self._config.gated:
            q, gate = torch.split(q, [D, D], dim=-1)
        if self._config.norm_qk == "head":
            q, k = self._normed(q, k)
        return q, k, v, gate

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        assert self._q_norm is not None
        assert self._k_norm is not None
        return self._q_norm(q), self._k_norm(k)


def _is_even(size: int) -> bool:
    """Whether kernels of few rows can cut a head of this size."""
    return size >= 16 and size & (size - 1) == 0

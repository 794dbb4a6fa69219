"""Multi-head latent attention (MLA): keys and values of all heads come of one latent a token, which the cache keeps.

Heads' own matrices are not applied to what is cached: the one for keys goes to the query's side, the one for values
behind the sum ("absorbed", DeepSeek-V2, arXiv 2405.04434). Prompts take this form as decodes do. Expanding keys and
values would save them multiplications (a head's query then meets 192 + 128 numbers a token instead of 576 + 512), but
each chunk would expand its whole context again, in memory that depends on lengths which a recorded step does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.head_linear import head_linear
from kernels.latent_attention import latent_attention
from kernels.quantize_rows import QuantizedRows
from kernels.rope import rope
from kernels.store_latent import store_latent
from model_svc.layers.linear import Linear
from model_svc.layers.loader import Loader
from model_svc.layers.mixer import Mixer
from model_svc.layers.norm import RmsNorm
from model_svc.layers.rope import RopeTables
from model_svc.layers.step import LayerKv, StepBatch
from model_svc.weights.kv_scales import K_SCALES, V_SCALES

_NORM_EPS = 1e-6  # of the norms of latents, whatever the config says of the others


@dataclass(frozen=True)
class LatentConfig:
    """Sizes: a latent has `kv_rank` numbers, a query's `q_rank` (0: queries are not compressed).

    A head's key has `nope_dim` numbers made of the latent, and `rope_dim` that carry the position and are the same for
    all heads. `scale` is what scores are multiplied with. `bias`: the products that compress, and the last one, have
    biases.
    """

    hidden: int
    num_heads: int
    kv_rank: int
    q_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    interleaved: bool = True
    bias: bool = False

    @property
    def line(self) -> int:
        """How many numbers the cache keeps of a token."""
        return self.kv_rank + self.rope_dim


class LatentAttention(Mixer):
    """One layer's attention over latents, `self_attn` of the checkpoint. It takes the place of `Attention` in a layer.

    Ranks share the heads; each keeps all latents. Raises ValueError for a scale that is not positive.
    """

    def __init__(self, loader: Loader, config: LatentConfig, tables: RopeTables) -> None:
        if config.scale <= 0:
            raise ValueError(f"scores cannot be multiplied with {config.scale}")
        self._config = config
        self._tables = tables
        H, R, E = config.num_heads, config.kv_rank, config.hidden
        own, whole = loader.shard(H), loader.shard(1)
        self.num_heads = H // own.size
        queries = H * (config.nope_dim + config.rope_dim)
        self._q_norm: RmsNorm | None = None
        if config.q_rank:
            outs, names = (config.q_rank, config.line), ("q_a_proj", "kv_a_proj_with_mqa")
            self._first = loader.columns(names, outs, E, (whole, whole), bias=config.bias)
            self._q_norm = RmsNorm(loader, "q_a_layernorm", config.q_rank, _NORM_EPS)
            self._q_b = loader.columns(("q_b_proj",), (queries,), config.q_rank, (own,))
        else:
            self._first = loader.columns(("q_proj", "kv_a_proj_with_mqa"), (queries, config.line), E, (own, whole))
        self._kv_norm = RmsNorm(loader, "kv_a_layernorm", R, _NORM_EPS)
        self._up_keys, self._up_values = self._ups(loader)
        self._out = loader.rows("o_proj", E, H * config.value_dim, bias=config.bias)
        self._scale = loader.kv_scale((*K_SCALES, *V_SCALES))

    def _ups(self, loader: Loader) -> tuple[Tensor, Tensor]:
        """Fetch what brings queries to the width of a latent, [H, R, D], and sums of latents to values, [H, Dv, R].

        Checkpoints have both in one matrix, GGUF files each by itself. Views, no copies: it may not have arrived yet.
        """
        H, R, own = self._config.num_heads, self._config.kv_rank, loader.shard(self._config.num_heads)
        D, Dv = self._config.nope_dim, self._config.value_dim
        if not loader.has("kv_b_proj.weight"):
            return loader.part("k_b_proj.weight", (H, R, D), own), loader.part("v_b_proj.weight", (H, Dv, R), own)
        both = loader.part("kv_b_proj.weight", (H * (D + Dv), R), own).view(self.num_heads, D + Dv, R)
        return both[:, :D].transpose(1, 2), both[:, D:]

    @property
    def first(self) -> Linear:
        """The product that its input goes to."""
        return self._first

    def _read(self, x: Tensor | QuantizedRows, step: StepBatch, kv: LayerKv) -> Tensor:
        """Return what the heads saw, [T, H * Dv]."""
        config, (cache,) = self._config, kv
        first = self._first(x)
        sizes = [first.shape[1] - config.line, config.kv_rank, config.rope_dim]
        taken, latent, turned = torch.split(first, sizes, dim=-1)
        q = taken if self._q_norm is None else self._q_b(self._q_norm(taken))
        heads = q.view(q.shape[0], self.num_heads, -1)
        q_nope, q_rope = torch.split(heads, [config.nope_dim, config.rope_dim], dim=-1)
        rope(q_rope, turned.unsqueeze(1), *self._tables, step.positions, interleaved=config.interleaved)
        store_latent(self._kv_norm(latent), turned, cache, step.slot_mapping, self._scale)
        sums = latent_attention(
            head_linear(q_nope, self._up_keys), q_rope, cache, step.block_tables, step.query_start, step.context_lens,
            scale=config.scale, cache_scale=self._scale,
            max_query_len=step.max_query_len, max_context_len=step.max_context_len,
        )  # fmt: skip
        return head_linear(sums, self._up_values).reshape(first.shape[0], -1)

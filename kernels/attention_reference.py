"""Paged attention in plain torch: the meaning of the op, and what a CPU without native kernels runs."""

import torch
from torch import Tensor

from kernels.float8_kv import ONES, KvScales
from kernels.language import cdiv


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scales: KvScales = ONES,
    limits: Tensor | None = None,
) -> Tensor:
    """Attend in plain torch, float32 inside: a running softmax over chunks of blocks."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    k_scale, v_scale = scales.of(k_cache)
    reference_into(
        out, q, k_cache, v_cache, block_tables, query_start, context_lens, scale * k_scale, window, softcap, sinks,
        v_scale, limits,
    )  # fmt: skip
    return out


def reference_into(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    v_scale: float = 1.0,
    limits: Tensor | None = None,
) -> None:
    """Write attention to `out`; rows of no sequence are left as they are. Scales as in `attention_step.Step`.

    Values may be narrower than keys, where they are their beginning: a view of the same cache.
    Sequences with equally many queries (all decodes, above all) are one group and run as one batch.
    """
    starts = query_start.tolist()
    groups: dict[int, list[int]] = {}
    for s in range(context_lens.shape[0]):
        if starts[s + 1] > starts[s]:
            groups.setdefault(starts[s + 1] - starts[s], []).append(s)
    for n, members in groups.items():
        index = torch.tensor(members, device=q.device)
        rows = query_start[index].long()[:, None] + torch.arange(n, device=q.device)
        result = _attend(
            q[rows], k_cache, v_cache, block_tables[index].long(), context_lens[index].long(),
            scale, window, softcap, sinks, None if limits is None else limits[rows],
        )  # fmt: skip
        out[rows] = (result * v_scale).to(out.dtype)


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    context: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    limits: Tensor | None,
) -> Tensor:
    """Attend for a group of S sequences with n queries each: `q` [S, n, H, D] -> [S, n, H, Dv] float32.

    `limits` [S, n] are the last keys that queries see; None: their own.
    """
    S, n, H, D = q.shape
    Dv = v_cache.shape[3]
    B, K = k_cache.shape[1:3]
    G = H // K
    q = (q.float() * scale).view(S, n, K, G, D).permute(0, 2, 3, 1, 4)  # [S, K, G, n, D]
    position = (context - n)[:, None] + torch.arange(n, device=q.device)  # [S, n]
    last = position if limits is None else limits
    if sinks is None:
        top = q.new_full((S, K, G, n), float("-inf"))
        total = q.new_zeros(S, K, G, n)
    else:
        top = sinks.float().view(K, G, 1).expand(S, K, G, n).clone()
        total = torch.ones_like(top)
    acc = q.new_zeros(S, K, G, n, Dv)
    shallowest, deepest = int(context.min()), int(context.max())
    first = max(0, shallowest - n - window + 1) // B if window else 0
    # About 4 MB of keys or of scores at a time: both stay in the CPU's cache, and no long context is ever dense.
    per_chunk = max(1, (1 << 20) // (S * max(K * D, H * n)) // B)
    for begin in range(first, cdiv(deepest, B), per_chunk):
        blocks = tables[:, begin : begin + per_chunk]
        key = begin * B + torch.arange(blocks.shape[1] * B, device=q.device)
        dead = key >= context[:, None]
        if window:
            dead |= key <= (context - n - window)[:, None]
        keys, values = _cached(k_cache, v_cache, blocks, dead)
        # Queries before this chunk see none of it, unless they see what comes behind them.
        i = max(0, begin * B - deepest + n) if limits is None else 0
        c = key.shape[0]
        scores = (q[..., i:, :].reshape(S, K, G * (n - i), D) @ keys).view(S, K, G, n - i, c)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = key > last[:, i:, None]
        if window:
            hidden |= key <= position[:, i:, None] - window
        scores.masked_fill_(hidden[:, None, None], float("-inf"))
        higher = torch.maximum(top[..., i:], scores.amax(-1))
        pivot = higher.masked_fill(higher == float("-inf"), 0.0)
        weights = torch.exp(scores.sub_(pivot[..., None]))
        decay = torch.exp(top[..., i:] - pivot)
        top[..., i:] = higher
        total[..., i:] = total[..., i:] * decay + weights.sum(-1)
        acc[..., i:, :].mul_(decay[..., None]).add_((weights.view(S, K, -1, c) @ values).view(S, K, G, n - i, Dv))
    acc /= total.masked_fill(total == 0, 1.0)[..., None]
    return acc.permute(0, 3, 1, 2, 4).reshape(S, n, H, Dv)


def _cached(k_cache: Tensor, v_cache: Tensor, blocks: Tensor, dead: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys [S, K, D, c] and values [S, K, c, Dv] of `blocks` [S, c / B], float32; `dead` [S, c] are none."""
    S, (B, K, D) = blocks.shape[0], k_cache.shape[1:]
    some_dead = bool(dead.any())
    if some_dead:  # ids of blocks that nobody holds may be anything
        blocks = blocks.masked_fill(dead.view(S, -1, B).all(-1), 0)
    keys = k_cache[blocks].reshape(S, -1, K, D).permute(0, 2, 3, 1).float()
    if v_cache.data_ptr() == k_cache.data_ptr():
        values = keys[:, :, : v_cache.shape[3]].transpose(2, 3)
    else:
        values = v_cache[blocks].reshape(S, -1, K, D).permute(0, 2, 1, 3).float()
    if some_dead:  # stale or never written: NaN there must not reach the sum
        values.masked_fill_(dead[:, None, :, None], 0.0)
    return keys, values

"""What the towers of Qwen's models are built of: patches in squares, rotary positions of two axes, attention in spans.

Patches stand square by square, as these become one token each: all of a square, then the next one of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.rope import rope
from model_svc.layers.loader import Loader
from model_svc.layers.norm import Norm
from model_svc.vision.qwen_config import QwenVisionConfig

# P patches of a picture, C numbers of a patch, E hidden size, H heads, D head dim


class Span(NamedTuple):
    """`groups` of `length` patches each, one after another, which see those of their group."""

    groups: int
    length: int


class Turns(NamedTuple):
    """cos and sin [P, D/2] of each patch's rotation, and the patches' own numbers [P], by which these are looked up."""

    cos: Tensor
    sin: Tensor
    own: Tensor


def patches_of(pixels: Tensor, config: QwenVisionConfig) -> Tensor:
    """Return the patches [P, C] of `pixels` [3, height, width]; all frames of a patch are the same."""
    m, p = config.scale_factor, config.patch_size
    channels, height, width = pixels.shape
    squares = pixels.view(channels, height // (m * p), m, p, width // (m * p), m, p).permute(1, 4, 2, 5, 0, 3, 6)
    films = squares.unsqueeze(5).expand(*squares.shape[:5], config.frames, p, p)
    return films.reshape(-1, config.patch_numbers)


def places_of(rows: int, columns: int, config: QwenVisionConfig, device: torch.device) -> Tensor:
    """Return the row and the column [2, P] of each of `rows` x `columns` patches."""
    m = config.scale_factor
    along = torch.arange(rows, device=device), torch.arange(columns, device=device)
    grid = torch.stack(torch.meshgrid(*along, indexing="ij"))
    return grid.view(2, rows // m, m, columns // m, m).transpose(2, 3).reshape(2, -1)


def turns_of(places: Tensor, config: QwenVisionConfig) -> Turns:
    """Return how heads turn at `places` [2, P]: their first pairs by the row, the others by the column."""
    pairs = config.hidden_size // config.num_heads // 4  # of one axis
    exponents = torch.arange(pairs, dtype=torch.float32, device=places.device) / pairs
    angles = (places[..., None].float() * (1.0 / config.rope_theta**exponents)).transpose(0, 1).flatten(1)
    return Turns(angles.cos(), angles.sin(), torch.arange(len(angles), device=places.device))


class SpanAttention:
    """Self-attention among the patches of a group."""

    def __init__(self, loader: Loader, config: QwenVisionConfig) -> None:
        E = config.hidden_size
        self._qkv = loader.columns(("qkv",), (3 * E,), E, (loader.shard(3 * E),), bias=True)
        self._out = loader.rows("proj", E, E, bias=True)
        self._num_heads = config.num_heads

    def __call__(self, x: Tensor, turns: Turns, spans: Sequence[Span]) -> Tensor:
        """Return the output for `x` [P, E]."""
        qkv = self._qkv(x).view(x.shape[0], 3, self._num_heads, -1)
        rope(qkv[:, 0], qkv[:, 1], *turns)
        parts = torch.split(qkv, [span.groups * span.length for span in spans])
        return self._out(torch.cat([_attended(part, span) for part, span in zip(parts, spans, strict=True)]))


def _attended(qkv: Tensor, span: Span) -> Tensor:
    """Return what heads saw, [P, E], of `qkv` [P, 3, H, D]."""
    query, key, value = qkv.view(*span, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
    seen = functional.scaled_dot_product_attention(query, key, value)
    return seen.transpose(1, 2).reshape(len(qkv), -1)


class SpanLayer:
    """Norm and attention, norm and feed-forward block, each added to what came in."""

    def __init__(self, norm: Norm, attention: SpanAttention, mlp_norm: Norm, mlp: Callable[[Tensor], Tensor]) -> None:
        self._norm, self._attention, self._mlp_norm, self._mlp = norm, attention, mlp_norm, mlp

    def __call__(self, x: Tensor, turns: Turns, spans: Sequence[Span]) -> Tensor:
        """Return the next hidden states [P, E]."""
        x = x + self._attention(self._norm(x), turns, spans)
        return x + self._mlp(self._mlp_norm(x))


class Merger:
    """Makes a feature of each square of patches; `names` are those of its two products."""

    def __init__(self, loader: Loader, config: QwenVisionConfig, names: tuple[str, str]) -> None:
        self._width = config.hidden_size * config.scale_factor**2
        whole = (loader.shard(self._width),)
        self._up = loader.columns((names[0],), (self._width,), self._width, whole, bias=True)
        self._down = loader.rows(names[1], config.out_size, self._width, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Return features [F, out] of normed hidden states `x` [P, E]."""
        return self._down(functional.gelu(self._up(x.reshape(-1, self._width))))


def patch_embedding(loader: Loader, config: QwenVisionConfig, *, bias: bool) -> Callable[[Tensor], Tensor]:
    """Fetch the product of patches: a convolution whose stride is its size is one with the numbers of each patch."""
    E, p = config.hidden_size, config.patch_size
    proj = loader.at("patch_embed")
    kernel = loader.source.get(f"{proj.prefix}proj.weight", (E, config.num_channels, config.frames, p, p))
    offset = proj.dense("proj.bias", (E,)) if bias else None
    return loader.method.linear([kernel.reshape(E, config.patch_numbers)], offset)

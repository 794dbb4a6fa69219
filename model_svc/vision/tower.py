"""A vision tower of SigLIP's kind (arXiv 2303.15343): patches in, a hidden state for each out.

Pictures come as tiles of one size, cut so that no patch is padding: every patch sees all others of its tile.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from model_svc.layers.loader import Loader
from model_svc.layers.norm import LayerNorm
from model_svc.layers.plain_mlp import PlainMlp, activation_of
from model_svc.vision.config import VisionConfig

# n tiles, P patches of each, C numbers of a patch, E hidden size, H heads, D head dim


class _Attention:
    """Self-attention among the patches of a tile."""

    def __init__(self, loader: Loader, config: VisionConfig) -> None:
        E = config.hidden_size
        whole = (loader.shard(E),) * 3
        self._qkv = loader.columns(("q_proj", "k_proj", "v_proj"), (E, E, E), E, whole, bias=True)
        self._out = loader.rows("out_proj", E, E, bias=True)
        self._num_heads = config.num_heads

    def __call__(self, x: Tensor, num_tiles: int) -> Tensor:
        """Return the output for `x` [n * P, E]."""
        H = self._num_heads
        query, key, value = self._qkv(x).view(num_tiles, -1, 3, H, x.shape[1] // H).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self._out(seen.transpose(1, 2).reshape(x.shape))


class _Layer:
    """Norm and attention, norm and feed-forward block, each added to what came in."""

    def __init__(self, loader: Loader, config: VisionConfig) -> None:
        E, eps = config.hidden_size, config.norm_eps
        self._norm1 = LayerNorm(loader, "layer_norm1", E, eps, bias=True)
        self._attention = _Attention(loader.at("self_attn"), config)
        self._norm2 = LayerNorm(loader, "layer_norm2", E, eps, bias=True)
        act = activation_of(config.act)
        self._mlp = PlainMlp(loader.at("mlp"), E, config.intermediate_size, act, bias=True, names=("fc1", "fc2"))

    def __call__(self, x: Tensor, num_tiles: int) -> Tensor:
        """Return the next hidden states [n * P, E]."""
        x = x + self._attention(self._norm1(x), num_tiles)
        return x + self._mlp(self._norm2(x))


class VisionTower:
    """Patch embedding with learned positions, pre-norm layers, a last norm."""

    def __init__(self, loader: Loader, config: VisionConfig, *, one_size: bool = False) -> None:
        """`one_size`: all tiles have the size of training, so patches take positions in their order."""
        E, P = config.hidden_size, config.patch_size
        embeddings = loader.at("embeddings")
        # A convolution whose stride is its size is one product with the numbers of each patch.
        kernel = loader.source.get(f"{embeddings.prefix}patch_embedding.weight", (E, config.num_channels, P, P))
        self._embed = loader.method.linear(
            [kernel.reshape(E, config.patch_numbers)], embeddings.dense("patch_embedding.bias", (E,))
        )
        self._positions = embeddings.dense("position_embedding.weight", (config.grid**2, E))
        layers = loader.at("encoder").at("layers")
        self._layers = [_Layer(layers.at(n), config) for n in range(config.num_layers)]
        self._norm = LayerNorm(loader, "post_layernorm", E, config.norm_eps, bias=True)
        self._config = config
        self._one_size = one_size

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return hidden states [n, P, E] of `tiles` [n, 3, height, width], patches row by row."""
        size = self._config.patch_size
        n, channels = tiles.shape[:2]
        rows, columns = tiles.shape[2] // size, tiles.shape[3] // size
        patches = tiles[:, :, : rows * size, : columns * size].reshape(n, channels, rows, size, columns, size)
        x = self._embed(patches.permute(0, 2, 4, 1, 3, 5).reshape(n * rows * columns, -1))
        positions = self._positions if self._one_size else self._positions[self._places(rows, columns)]
        x = (x.view(n, rows * columns, -1) + positions).flatten(0, 1)
        for layer in self._layers:
            x = layer(x, n)
        return self._norm(x).view(n, rows * columns, -1)

    def _places(self, rows: int, columns: int) -> Tensor:
        """Return which learned position each patch takes: that of its place in a grid of the size of training."""
        grid, device = self._config.grid, self._positions.device
        bounds = torch.arange(1 / grid, 1.0, 1 / grid, device=device)

        def along(count: int) -> Tensor:
            shares = torch.arange(count, device=device, dtype=torch.float32) * (1.0 / torch.tensor(count))
            return torch.bucketize(shares.clamp(max=1.0 - 1e-6), bounds, right=True)

        return (along(rows)[:, None] * grid + along(columns)[None, :]).flatten()

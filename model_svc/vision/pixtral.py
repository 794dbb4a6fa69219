"""How Mistral 3 and Pixtral (arXiv 2410.07073) see: pictures of any shape, patches rotated by row and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from model_svc.layers.loader import Loader
from model_svc.layers.mlp import GatedMlp
from model_svc.layers.norm import RmsNorm
from model_svc.layers.plain_mlp import activation_of
from model_svc.vision.config import VisionConfig, vision_config
from model_svc.weights.errors import CheckpointError

_EPS = 1e-5  # of the tower's norms; no config says it
_USUAL: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
    "rope_theta": 10000.0,
}


class _Attention:
    """Self-attention among the patches of a picture."""

    def __init__(self, loader: Loader, config: VisionConfig) -> None:
        E = config.hidden_size
        whole = (loader.shard(E),) * 3
        self._qkv = loader.columns(("q_proj", "k_proj", "v_proj"), (E, E, E), E, whole)
        self._out = loader.rows("o_proj", E, E)
        self._num_heads = config.num_heads

    def __call__(self, x: Tensor, num_tiles: int, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the output for `x` [n * P, E]; `turns` are the cosines and sines of each patch [P, D]."""
        H = self._num_heads
        query, key, value = self._qkv(x).view(num_tiles, -1, 3, H, x.shape[1] // H).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(_turned(query, turns), _turned(key, turns), value)
        return self._out(seen.transpose(1, 2).reshape(x.shape))


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * turns[0] + torch.cat([-second, first], -1) * turns[1]


class _Layer:
    """Norm and attention, norm and feed-forward block, each added to what came in."""

    def __init__(self, loader: Loader, config: VisionConfig) -> None:
        E = config.hidden_size
        self._norm1 = RmsNorm(loader, "attention_norm", E, _EPS)
        self._attention = _Attention(loader.at("attention"), config)
        self._norm2 = RmsNorm(loader, "ffn_norm", E, _EPS)
        self._mlp = GatedMlp(loader.at("feed_forward"), E, config.intermediate_size, config.act)

    def __call__(self, x: Tensor, num_tiles: int, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the next hidden states [n * P, E]."""
        x = x + self._attention(self._norm1(x), num_tiles, turns)
        return x + self._mlp(self._norm2(x))


class _Tower:
    """Patch embedding, a norm, layers, and no norm behind them."""

    def __init__(self, loader: Loader, config: VisionConfig) -> None:
        E, P = config.hidden_size, config.patch_size
        kernel = loader.source.get(f"{loader.prefix}patch_conv.weight", (E, config.num_channels, P, P))
        self._embed = loader.method.linear([kernel.reshape(E, config.patch_numbers)], None)
        self._norm = RmsNorm(loader, "ln_pre", E, _EPS)
        layers = loader.at("transformer").at("layers")
        self._layers = [_Layer(layers.at(n), config) for n in range(config.num_layers)]
        self._config = config

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return hidden states [n, rows, columns, E] of the patches of `tiles` [n, 3, height, width]."""
        size = self._config.patch_size
        n, channels, height, width = tiles.shape
        rows, columns = height // size, width // size
        patches = tiles.reshape(n, channels, rows, size, columns, size).permute(0, 2, 4, 1, 3, 5)
        x = self._norm(self._embed(patches.reshape(n * rows * columns, -1)))
        turns = self._turns(rows, columns, x)
        for layer in self._layers:
            x = layer(x, n, turns)
        return x.view(n, rows, columns, -1)

    def _turns(self, rows: int, columns: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [P, D], in the dtype of `x`: half of a head turns by the row, half by the column."""
        D = self._config.hidden_size // self._config.num_heads
        rates = 1.0 / self._config.rope_theta ** (torch.arange(0, D, 2, device=x.device, dtype=torch.float32) / D)
        down, across = (torch.arange(count, device=x.device, dtype=torch.float32) for count in (rows, columns))
        by_row = (down[:, None] * rates[0::2])[:, None].expand(rows, columns, -1)
        by_column = (across[:, None] * rates[1::2])[None].expand(rows, columns, -1)
        angles = torch.cat([by_row, by_column] * 2, -1).flatten(0, 1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class PixtralVision:
    """Pictures in, features of the width of the model of texts out, one of each patch or square of patches."""

    image_token_id = 10
    both_ways = False
    usual_merge = 1
    _PATCHES = "vision_tower.patch_conv.weight"

    def __init__(self, loader: Loader, config: VisionConfig, hidden: int) -> None:
        """`hidden` is the width of the model of texts."""
        body = loader if loader.has(self._PATCHES) else loader.at("model")
        E, self._merge = config.hidden_size, config.scale_factor
        self._tower = _Tower(body.at("vision_tower"), config)
        connector = body.at("multi_modal_projector")
        self._norm = RmsNorm(connector, "norm", E, config.norm_eps) if connector.has("norm.weight") else None
        self._merger = None
        if connector.has("patch_merger.merging_layer.weight"):
            merger, wide = connector.at("patch_merger"), E * self._merge**2
            self._merger = merger.columns(("merging_layer",), (E,), wide, (loader.shard(E),))
        bias = connector.has("linear_1.bias")
        first = connector.columns(("linear_1",), (hidden,), E, (loader.shard(hidden),), bias=bias)
        self._first, self._act = first, activation_of(config.projector_act)
        self._second = connector.rows("linear_2", hidden, hidden, bias=bias)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E] of `tiles` [n, 3, height, width], those of a picture row by row."""
        seen, s = self._tower(tiles), self._merge
        n, rows, columns, width = seen.shape
        x = seen.view(-1, width)
        if self._norm is not None:
            x = self._norm(x)
        if self._merger is not None:  # each number of the patches of a square side by side
            squares = x.view(n, rows // s, s, columns // s, s, width).permute(0, 1, 3, 5, 2, 4)
            x = self._merger(squares.reshape(-1, width * s * s))
        return self._second(self._act(self._first(x)))

    @classmethod
    def read_config(cls, path: Path, whole: Mapping[str, Any]) -> VisionConfig:
        """Read what a config from `path` says; what it leaves out is as usual. Raises CheckpointError naming the field.

        `norm_eps` is that of the norm behind the tower, which is the one of texts.
        """
        raw = whole.get("vision_config")
        if not isinstance(raw, dict):
            raise CheckpointError(path, f"vision_config must be an object, not {raw!r}")
        said = _USUAL | {name: value for name, value in raw.items() if value is not None}
        for name, only in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "full")):
            if whole.get(name, only) != only:
                raise CheckpointError(path, f"{name} must be {only!r} before a tower of Pixtral's, not {whole[name]!r}")
        merge = whole.get("spatial_merge_size", cls.usual_merge)
        said["layer_norm_eps"] = whole.get("rms_norm_eps", 1e-6)
        found = vision_config(path, {**whole, "vision_config": said, "scale_factor": merge})
        rope = said.get("rope_parameters")
        theta: Any = (rope if isinstance(rope, dict) else said).get("rope_theta", said["rope_theta"])
        if type(theta) not in (int, float) or theta <= 0 or (found.hidden_size // found.num_heads) % 4:
            size = found.hidden_size // found.num_heads
            raise CheckpointError(path, f"rope_theta {theta!r} of what sees, and heads of {size}, make no sense")
        return replace(found, rope_theta=float(theta), projector_act=str(whole.get("projector_hidden_act") or "gelu"))

    @staticmethod
    def num_features(config: VisionConfig, rows: int, columns: int) -> int:
        """Return how many features a tile of so many patches makes; 0 if it cannot be cut so."""
        merge = config.scale_factor
        return 0 if rows % merge or columns % merge else (rows // merge) * (columns // merge)

    @classmethod
    def is_in(cls, loader: Loader) -> bool:
        """Tell whether the checkpoint holds it."""
        return loader.has(cls._PATCHES) or loader.at("model").has(cls._PATCHES)


class Mistral3Vision(PixtralVision):
    """Patches are normed, and those of a square merged into one, before they are projected."""

    usual_merge = 2

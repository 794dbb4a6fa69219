"""How Qwen2.5-VL sees (arXiv 2502.13923): pictures keep their form, most layers attend in windows."""

from __future__ import annotations

import torch
from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.layers.mlp import GatedMlp
from model_svc.layers.norm import RmsNorm
from model_svc.vision.qwen import QwenVision
from model_svc.vision.qwen_config import QwenVisionConfig, qwen2_5_config
from model_svc.vision.qwen_parts import (
    Merger,
    Span,
    SpanAttention,
    SpanLayer,
    patch_embedding,
    patches_of,
    places_of,
    turns_of,
)


class Qwen25VlVision(QwenVision):
    """Qwen2.5-VL's tower."""

    axes_in_turns = False
    usual_axes = (16, 24, 24)
    read_config = staticmethod(qwen2_5_config)

    def _load(self, tower: Loader, config: QwenVisionConfig) -> None:
        self._embed = patch_embedding(tower, config, bias=False)
        self._layers = [_layer(tower.at("blocks").at(n), config) for n in range(config.num_layers)]
        self._norm = RmsNorm(tower.at("merger"), "ln_q", config.hidden_size, config.norm_eps)
        self._merger = Merger(tower.at("merger").at("mlp"), config, ("0", "2"))

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E] of one picture, `tiles` [1, 3, height, width], row by row."""
        config, (_, _, height, width) = self._config, tiles.shape
        rows, columns = height // config.patch_size, width // config.patch_size
        m = config.scale_factor
        order, windows = windows_of(rows // m, columns // m, config, tiles.device)
        patches = patches_of(tiles[0], config).view(len(order), m * m, -1)[order]
        places = places_of(rows, columns, config, tiles.device).view(2, len(order), m * m)[:, order]
        turns, whole = turns_of(places.flatten(1), config), [Span(1, rows * columns)]
        x = self._embed(patches.flatten(0, 1))
        for n, layer in enumerate(self._layers):
            x = layer(x, turns, whole if n in config.full else windows)
        found = self._merger(self._norm(x))
        return torch.empty_like(found).index_copy_(0, order, found)


def windows_of(rows: int, columns: int, config: QwenVisionConfig, device: torch.device) -> tuple[Tensor, list[Span]]:
    """Return an order [F] of `rows` x `columns` squares in which windows stand together, and these as spans of patches.

    Windows begin in the upper left corner. Those of one size stand side by side: the whole ones, then what is left of
    them at the right, below, and in the corner.
    """
    side = config.window // config.patch_size // config.scale_factor
    grid = torch.arange(rows * columns, device=device).view(rows, columns)
    order, spans = [], []
    down, across = rows - rows % side, columns - columns % side
    for upper, lower in ((0, down), (down, rows)):
        for left, right in ((0, across), (across, columns)):
            part = grid[upper:lower, left:right]
            height, width = min(side, lower - upper), min(side, right - left)
            if part.numel():
                squares = part.reshape(part.shape[0] // height, height, part.shape[1] // width, width)
                order.append(squares.transpose(1, 2).flatten())
                spans.append(Span(part.numel() // (height * width), height * width * config.scale_factor**2))
    return torch.cat(order), spans


def _layer(loader: Loader, config: QwenVisionConfig) -> SpanLayer:
    E, eps = config.hidden_size, config.norm_eps
    mlp = GatedMlp(loader.at("mlp"), E, config.intermediate_size, config.act, bias=True)
    attention = SpanAttention(loader.at("attn"), config)
    return SpanLayer(RmsNorm(loader, "norm1", E, eps), attention, RmsNorm(loader, "norm2", E, eps), mlp)

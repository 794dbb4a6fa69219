"""How Qwen3-VL sees (arXiv 2511.21631): learned positions beside rotary ones, features also from inside the tower.

Those go to the first layers of the model of texts (DeepStack, arXiv 2406.04334).
"""

from __future__ import annotations

import torch
from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.layers.norm import LayerNorm
from model_svc.layers.plain_mlp import PlainMlp, activation_of
from model_svc.vision.qwen import QwenVision
from model_svc.vision.qwen_config import QwenVisionConfig, qwen3_config
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

_NAMES = ("linear_fc1", "linear_fc2")


class Qwen3VlVision(QwenVision):
    """A picture in, features out: behind those that stand for tokens, one after another, those of the deep layers."""

    axes_in_turns = True
    usual_axes = (24, 20, 20)
    read_config = staticmethod(qwen3_config)

    def _load(self, tower: Loader, config: QwenVisionConfig) -> None:
        E, eps, whole = config.hidden_size, config.norm_eps, config.hidden_size * config.scale_factor**2
        self._embed = patch_embedding(tower, config, bias=True)
        self._positions = tower.dense("pos_embed.weight", (config.grid**2, E))
        self._layers = [_layer(tower.at("blocks").at(n), config) for n in range(config.num_layers)]
        self._norm = LayerNorm(tower.at("merger"), "norm", E, eps, bias=True)
        self._merger = Merger(tower.at("merger"), config, _NAMES)
        self._deep = []
        for n in range(len(config.deep)):
            place = tower.at("deepstack_merger_list").at(n)
            self._deep.append((LayerNorm(place, "norm", whole, eps, bias=True), Merger(place, config, _NAMES)))

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E + E * deep] of one picture, `tiles` [1, 3, height, width], row by row."""
        config, (_, _, height, width) = self._config, tiles.shape
        rows, columns = height // config.patch_size, width // config.patch_size
        places = places_of(rows, columns, config, tiles.device)
        x = self._embed(patches_of(tiles[0], config))
        x = x + self._learned(places, rows, columns).to(x.dtype)
        turns, whole = turns_of(places, config), [Span(1, rows * columns)]
        deep = []
        for n, layer in enumerate(self._layers):
            x = layer(x, turns, whole)
            if n in config.deep:
                norm, merger = self._deep[config.deep.index(n)]
                deep.append(merger(norm(x.reshape(-1, x.shape[1] * config.scale_factor**2))))
        return torch.cat([self._merger(self._norm(x)), *deep], 1)

    def _learned(self, places: Tensor, rows: int, columns: int) -> Tensor:
        """Return learned positions [P, E] at `places` [2, P], between the corners of a grid that spans the picture."""
        side = self._config.grid
        edges = torch.tensor([[max(rows - 1, 1)], [max(columns - 1, 1)]], device=places.device)
        at = places.float() * (side - 1) / edges
        low = at.floor().long()
        share, high = at - low, (low + 1).clamp(max=side - 1)
        taken = torch.zeros(places.shape[1], self._config.hidden_size, device=places.device)
        for row, part in ((low[0], 1 - share[0]), (high[0], share[0])):
            for column, other in ((low[1], 1 - share[1]), (high[1], share[1])):
                taken += self._positions[row * side + column] * (part * other)[:, None]
        return taken


def _layer(loader: Loader, config: QwenVisionConfig) -> SpanLayer:
    E, eps = config.hidden_size, config.norm_eps
    act = activation_of(config.act)
    mlp = PlainMlp(loader.at("mlp"), E, config.intermediate_size, act, bias=True, names=_NAMES)
    attention = SpanAttention(loader.at("attn"), config)
    norms = [LayerNorm(loader, name, E, eps, bias=True) for name in ("norm1", "norm2")]
    return SpanLayer(norms[0], attention, norms[1], mlp)

"""How Idefics3 (arXiv 2408.12637) and SmolVLM see: a tower, then squares of patches side by side as one token each."""

from __future__ import annotations

from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.vision.config import VisionConfig
from model_svc.vision.tower import VisionTower


class Idefics3Vision:
    """Tiles in, features of the width of the model of texts out."""

    image_token_id = 128257
    _TOWER, _CONNECTOR = "vision_model", "connector"

    def __init__(self, loader: Loader, config: VisionConfig, hidden: int) -> None:
        """`hidden` is the width of the model of texts."""
        body = loader.at("model")
        self._tower = VisionTower(body.at(self._TOWER), config)
        self._scale = config.scale_factor
        width = config.hidden_size * self._scale**2
        whole = (loader.shard(hidden),)
        self._proj = body.at(self._CONNECTOR).at("modality_projection").columns(("proj",), (hidden,), width, whole)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E] of `tiles` [n, 3, side, side], those of a tile row by row."""
        seen, s = self._tower(tiles), self._scale
        n, patches, width = seen.shape
        side = int(patches**0.5) // s
        squares = seen.view(n, side, s, side, s, width).permute(0, 1, 3, 2, 4, 5)
        return self._proj(squares.reshape(n * side * side, s * s * width))

    @classmethod
    def is_in(cls, loader: Loader) -> bool:
        """Tell whether the checkpoint holds it."""
        return loader.at("model").has(f"{cls._TOWER}.embeddings.patch_embedding.weight")

    @classmethod
    def leave(cls, loader: Loader) -> None:
        """Count its tensors as used: another stage has them."""
        for part in (cls._TOWER, cls._CONNECTOR):
            loader.at("model").at(part).leave()

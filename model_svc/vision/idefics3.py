"""How Idefics3 (arXiv 2408.12637) and SmolVLM see: a tower, then squares of patches side by side as one token each."""

from __future__ import annotations

from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.vision.config import VisionConfig, vision_config
from model_svc.vision.tower import VisionTower


class Idefics3Vision:
    """Tiles in, features of the width of the model of texts out."""

    image_token_id = 128257
    both_ways = False
    read_config = staticmethod(vision_config)

    def __init__(self, loader: Loader, config: VisionConfig, hidden: int) -> None:
        """`hidden` is the width of the model of texts."""
        body = loader.at("model")
        self._tower = VisionTower(body.at("vision_model"), config)
        self._scale = config.scale_factor
        width = config.hidden_size * self._scale**2
        whole = (loader.shard(hidden),)
        self._proj = body.at("connector").at("modality_projection").columns(("proj",), (hidden,), width, whole)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E] of `tiles` [n, 3, side, side], those of a tile row by row."""
        seen, s = self._tower(tiles), self._scale
        n, patches, width = seen.shape
        side = int(patches**0.5) // s
        squares = seen.view(n, side, s, side, s, width).permute(0, 1, 3, 2, 4, 5)
        return self._proj(squares.reshape(n * side * side, s * s * width))

    @staticmethod
    def num_features(config: VisionConfig, rows: int, columns: int) -> int:
        """Return how many features a tile of so many patches makes; 0 if it cannot be cut so."""
        scale = config.scale_factor
        return (rows // scale) * (columns // scale) if rows == columns and rows % scale == 0 else 0

    @classmethod
    def is_in(cls, loader: Loader) -> bool:
        """Tell whether the checkpoint holds it."""
        return loader.at("model").has("vision_model.embeddings.patch_embedding.weight")

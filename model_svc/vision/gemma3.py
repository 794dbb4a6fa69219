"""How Gemma 3 sees (arXiv 2503.19786): a tower for pictures of one size, whose patches are averaged into few tokens."""

from __future__ import annotations

from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.layers.norm import RmsNorm
from model_svc.vision.config import VisionConfig, vision_config
from model_svc.vision.tower import VisionTower


class Gemma3Vision:
    """Pictures in, features of the width of the model of texts out; its tokens see one another in both directions."""

    image_token_id = 262144
    both_ways = True
    read_config = staticmethod(vision_config)
    _TOWERS = ("vision_tower.vision_model", "vision_tower", "model.vision_tower.vision_model", "model.vision_tower")
    _CONNECTORS = ("multi_modal_projector", "model.multi_modal_projector")

    def __init__(self, loader: Loader, config: VisionConfig, hidden: int) -> None:
        """`hidden` is the width of the model of texts."""
        E = config.hidden_size
        place = next(each for each in self._TOWERS if loader.at(each).has("post_layernorm.weight"))
        tower = loader.at(place)
        self._tower = VisionTower(tower, config, one_size=True)
        tower.at("head").leave()  # for one vector of a whole picture
        connector = loader.at(next(each for each in self._CONNECTORS if loader.at(each).has("mm_soft_emb_norm.weight")))
        self._norm = RmsNorm(connector, "mm_soft_emb_norm", E, config.norm_eps, offset=1.0)
        weight = loader.source.get(f"{connector.prefix}mm_input_projection_weight", (E, hidden))
        self._proj = loader.method.linear([weight.t().contiguous()], None)
        self._side = int(config.mm_tokens**0.5)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E] of `tiles` [n, 3, side, side], those of a picture row by row."""
        seen, side = self._tower(tiles), self._side
        n, patches, width = seen.shape
        share = int(patches**0.5) // side
        pooled = seen.view(n, side, share, side, share, width).mean((2, 4))
        return self._proj(self._norm(pooled.view(n * side * side, width)))

    @staticmethod
    def num_features(config: VisionConfig, rows: int, columns: int) -> int:
        """Return how many features a tile of so many patches makes; 0 if it cannot be cut so."""
        side = int(config.mm_tokens**0.5)
        whole = rows == columns == config.grid and side**2 == config.mm_tokens and config.grid % side == 0
        return side**2 if whole else 0

    @classmethod
    def is_in(cls, loader: Loader) -> bool:
        """Tell whether the checkpoint holds it."""
        return any(loader.at(place).has("post_layernorm.weight") for place in cls._TOWERS)

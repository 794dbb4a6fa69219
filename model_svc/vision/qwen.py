"""What is alike in how Qwen's models see: pictures in their own form, and tokens with a row and a column."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.vision.config import VisionConfig
from model_svc.vision.qwen_config import QwenVisionConfig

_PLACES = ("visual", "model.visual")


class QwenVision:
    """A picture in, features of the width of the model of texts out; subclasses load a tower and run it.

    `axes_in_turns`: rotated pairs take turns with the axis of their positions, instead of standing axis by axis;
    `usual_axes`: how many each axis has where the config does not say.
    """

    image_token_id = 151655
    both_ways = False
    axes_in_turns: ClassVar[bool]
    usual_axes: ClassVar[tuple[int, int, int]]

    def __init__(self, loader: Loader, config: VisionConfig, hidden: int) -> None:
        """`hidden` is the width of the model of texts. Raises ValueError for features of another."""
        assert isinstance(config, QwenVisionConfig)
        if config.out_size != hidden:
            raise ValueError(f"features of out_hidden_size {config.out_size} do not fit a model of {hidden}")
        self._config = config
        self._load(next(loader.at(place) for place in _PLACES if _is_at(loader.at(place))), config)

    def _load(self, tower: Loader, config: QwenVisionConfig) -> None:
        raise NotImplementedError

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return features [F, E] of one picture, `tiles` [1, 3, height, width], row by row."""
        raise NotImplementedError

    @staticmethod
    def num_features(config: VisionConfig, rows: int, columns: int) -> int:
        """Return how many features a picture of so many patches makes; 0 if it cannot be cut so."""
        m = config.scale_factor
        return (rows // m) * (columns // m) if rows % m == columns % m == 0 else 0

    @classmethod
    def is_in(cls, loader: Loader) -> bool:
        """Tell whether the checkpoint holds it."""
        return any(_is_at(loader.at(place)) for place in _PLACES)


def _is_at(tower: Loader) -> bool:
    return tower.has("patch_embed.proj.weight")

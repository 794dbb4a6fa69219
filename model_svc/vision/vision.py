"""What a model sees with: pictures in, features out that stand in a prompt like embeddings of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.vision.config import VisionConfig, vision_config
from model_svc.vision.idefics3 import Idefics3Vision
from model_svc.vision.pixels import Pixels
from model_svc.weights.errors import CheckpointError

# config.json's `architectures[0]` -> what sees. Of others the part of texts is served.
ARCHITECTURES = {
    "Idefics3ForConditionalGeneration": Idefics3Vision,
    "SmolVLMForConditionalGeneration": Idefics3Vision,
}
_MAX_PATCHES = 8192  # looked at together: more would only take more memory


class Vision:
    """A vision tower with all before it and behind it."""

    def __init__(self, see: Idefics3Vision, pixels: Pixels, config: VisionConfig, image_token_id: int) -> None:
        self.image_token_id = image_token_id
        self._see = see
        self._pixels = pixels
        self._config = config

    @property
    def workspace_numbers(self) -> int:
        """How many numbers, about, are there at once while it looks."""
        config = self._config
        return _MAX_PATCHES * (8 * config.hidden_size + 2 * config.intermediate_size + 2 * config.patch_numbers)

    def num_features(self, num_tiles: int, height: int, width: int) -> int:
        """Return how many features tiles of this size make."""
        step = self._config.patch_size * self._config.scale_factor
        return num_tiles * (height // step) * (width // step)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Return the features [F, E] of one picture's `tiles` [n, height, width, 3] in bytes.

        Other pictures are looked at on their own, so that a picture's features depend on nothing else.
        """
        patches = (tiles.shape[1] // self._config.patch_size) * (tiles.shape[2] // self._config.patch_size)
        together = max(1, _MAX_PATCHES // patches)
        return torch.cat([self._see(self._pixels(part)) for part in torch.split(tiles, together)])


def load_vision(
    architecture: str, path: Path, whole: Mapping[str, Any], loader: Loader, hidden: int, device: torch.device
) -> Vision | None:
    """Load what a model sees with; None for a model that does not, or whose files hold only its part of texts.

    `whole` is config.json, read from `path`, `hidden` the width of the model of texts. Raises CheckpointError.
    """
    kind = ARCHITECTURES.get(architecture)
    if kind is None or not kind.is_in(loader):
        return None
    image_token_id = whole.get("image_token_id", kind.image_token_id)
    if type(image_token_id) is not int or image_token_id < 0:
        raise CheckpointError(path, f"image_token_id must be a token's id, not {image_token_id!r}")
    config = vision_config(path, whole)
    if loader.group.is_first:
        pixels = Pixels(path.parent, loader.method.dtype, device)
        return Vision(kind(loader, config, hidden), pixels, config, image_token_id)
    kind.leave(loader)
    return None

"""What a model sees with: pictures in, features out that stand in a prompt like embeddings of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_svc.layers.loader import Loader
from model_svc.layers.rope import RopeConfig, pair_axes
from model_svc.vision.config import VisionConfig
from model_svc.vision.gemma3 import Gemma3Vision
from model_svc.vision.idefics3 import Idefics3Vision
from model_svc.vision.pixels import Pixels
from model_svc.vision.pixtral import Mistral3Vision, PixtralVision
from model_svc.vision.qwen import QwenVision
from model_svc.vision.qwen2_5_vl import Qwen25VlVision
from model_svc.vision.qwen3_vl import Qwen3VlVision
from model_svc.vision.qwen_config import QwenVisionConfig
from model_svc.weights.errors import CheckpointError
from wire.pictures import Layout, PictureForm, read_form

Sees = Gemma3Vision | Idefics3Vision | PixtralVision | Qwen25VlVision | Qwen3VlVision
Kind = type[Gemma3Vision] | type[Idefics3Vision] | type[PixtralVision] | type[Qwen25VlVision] | type[Qwen3VlVision]

# config.json's `architectures[0]` -> what sees. Of others the part of texts is served.
ARCHITECTURES: dict[str, Kind] = {
    "Gemma3ForConditionalGeneration": Gemma3Vision,
    "Idefics3ForConditionalGeneration": Idefics3Vision,
    "LlavaForConditionalGeneration": PixtralVision,  # those with this tower
    "Mistral3ForConditionalGeneration": Mistral3Vision,
    "Qwen2_5_VLForConditionalGeneration": Qwen25VlVision,
    "Qwen3VLForConditionalGeneration": Qwen3VlVision,
    "SmolVLMForConditionalGeneration": Idefics3Vision,
}
_PARTS = ("vision_tower", "multi_modal_projector", "visual", "vision_model", "connector")
_LARGE = 1 << 13  # pixels along each side: nobody sends a larger picture
_MAX_PATCHES = 8192  # looked at together: more would only take more memory


class Vision:
    """A vision tower with all before it and behind it.

    Each tile makes `tile_tokens` features, or where pictures keep their form one of each `feature_pixels` squared.
    The `largest` picture makes `most_features`. Behind a feature stand `num_deep` more, for the first layers of the
    model of texts.
    """

    def __init__(
        self, see: Sees, pixels: Pixels, config: VisionConfig, image_token_id: int, tile_tokens: int, largest: Layout
    ) -> None:
        self.image_token_id = image_token_id
        self.tile_tokens = tile_tokens
        self.feature_pixels = config.patch_size * config.scale_factor
        self.num_deep = len(config.deep) if isinstance(config, QwenVisionConfig) else 0
        self.most_features = largest.num_image_tokens
        self._most_patches = max(largest.tile.width * largest.tile.height // config.patch_size**2, _MAX_PATCHES)
        self._see = see
        self._pixels = pixels
        self._config = config

    @property
    def workspace_numbers(self) -> int:
        """How many numbers, about, are there at once while it looks."""
        config = self._config
        return self._most_patches * (8 * config.hidden_size + 2 * config.intermediate_size + 2 * config.patch_numbers)

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

    `whole` is config.json, read from `path`, `hidden` the width of the model of texts. What sees in models of other
    architectures is left out, as another stage's is. Raises CheckpointError.
    """
    kind = ARCHITECTURES.get(architecture)
    if kind is None or not loader.group.is_first or not kind.is_in(loader):
        for part in _PARTS:
            loader.at(part).leave()
            loader.at("model").at(part).leave()
        return None
    image_token_id = whole.get("image_token_id", whole.get("image_token_index", kind.image_token_id))
    if type(image_token_id) is not int or image_token_id < 0:
        raise CheckpointError(path, f"image_token_id must be a token's id, not {image_token_id!r}")
    config, form = kind.read_config(path, whole), read_form(path.parent, architecture)
    if form is None:
        raise CheckpointError(path, f"it is not known how {architecture} cuts pictures")
    tile_tokens = _tile_tokens(kind, form, path, config)
    window = whole.get("sliding_window")
    if kind.both_ways and type(window) is int and window < tile_tokens:
        raise CheckpointError(path, f"sliding_window {window} is shorter than a picture of {tile_tokens} tokens")
    pixels = Pixels(path.parent, loader.method.dtype, device)
    largest = form.layout(_LARGE, _LARGE)
    return Vision(kind(loader, config, hidden), pixels, config, image_token_id, tile_tokens, largest)


def sees_both_ways(architecture: str, loader: Loader) -> bool:
    """Tell whether a picture's tokens see one another in both directions, so that one step has to compute them."""
    kind = ARCHITECTURES.get(architecture)
    return kind is not None and kind.both_ways and kind.is_in(loader)


def pair_axes_of(architecture: str, loader: Loader, rope: RopeConfig, device: torch.device) -> Tensor | None:
    """Return by which of three axes each rotated pair turns, int64 [R/2]; None where positions have one axis.

    Raises ValueError for a checkpoint whose sections of pairs make no sense.
    """
    kind = ARCHITECTURES.get(architecture)
    if kind is None or not issubclass(kind, QwenVision) or not kind.is_in(loader):
        return None
    sections = (rope.scaling or {}).get("mrope_section") or kind.usual_axes
    if not isinstance(sections, list | tuple) or not all(type(each) is int for each in sections):
        raise ValueError(f"mrope_section must be three numbers, not {sections!r}")
    return pair_axes(rope.dim // 2, sections, in_turns=kind.axes_in_turns, device=device)


def _tile_tokens(kind: Kind, form: PictureForm, path: Path, config: VisionConfig) -> int:
    """Return how many tokens a tile takes in prompts, which must be as many as the tower makes of it."""
    layout, size = form.layout(1, 1), config.patch_size
    tokens = layout.num_image_tokens // layout.num_tiles
    made = kind.num_features(config, layout.tile.height // size, layout.tile.width // size)
    if made != tokens:
        fault = f"a tile of {layout.tile.width} x {layout.tile.height} pixels has {tokens} tokens in prompts"
        raise CheckpointError(path, f"{fault}; patches of {size} pixels make {made or 'no whole number'} of it")
    return tokens

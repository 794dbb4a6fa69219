"""Which models see pictures, and how: read from config.json and what the checkpoint says of its image processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from wire.model_files import ModelCardError, read
from wire.pictures.gemma3 import Gemma3Form
from wire.pictures.idefics3 import Idefics3Form
from wire.pictures.layout import PictureForm, Size
from wire.pictures.pixtral import PixtralForm
from wire.pictures.processor import ImageProcessor, Pixels, read_processor
from wire.pictures.qwen import QwenForm


class _Vision(msgspec.Struct):
    model_type: str | None = None
    image_size: int | None = None
    patch_size: int | None = None
    spatial_merge_size: int = 2


class _Config(msgspec.Struct):
    vision_config: _Vision | None = None
    scale_factor: int = 2
    mm_tokens_per_image: int = 256
    spatial_merge_size: int = 2


def read_form(path: Path, architecture: str) -> PictureForm | None:
    """Return how the model in a directory sees pictures, None if it sees none. Raises ModelCardError."""
    make = _FORMS.get(architecture)
    if make is None:
        return None
    file = path / "config.json"
    config = read(file, _Config)
    if config.vision_config is None:  # the part of texts alone
        return None
    try:
        return make(config, config.vision_config, read_processor(path))
    except ValueError as error:
        raise ModelCardError(f"{file}: {error}") from None


def _idefics3(config: _Config, vision: _Vision, processor: ImageProcessor) -> Idefics3Form:
    size = processor.size or Pixels(longest_edge=4 * 364)
    tile = (processor.max_image_size or Pixels()).longest_edge or 364
    patches = tile // _known(vision.patch_size, "vision_config.patch_size")
    return Idefics3Form(
        longest_edge=size.longest_edge,
        fixed=Size(size.width or tile, size.height or tile),
        tile=tile,
        splits=processor.do_image_splitting,
        tile_tokens=patches**2 // config.scale_factor**2,
    )


def _gemma3(config: _Config, vision: _Vision, processor: ImageProcessor) -> Gemma3Form:
    edge = _known(vision.image_size, "vision_config.image_size")
    size = processor.size or Pixels()
    return Gemma3Form(size=Size(size.width or edge, size.height or edge), num_tokens=config.mm_tokens_per_image)


def _mistral3(config: _Config, vision: _Vision, processor: ImageProcessor) -> PixtralForm:
    return _pixtral(vision, processor, config.spatial_merge_size)


def _llava(_config: _Config, vision: _Vision, processor: ImageProcessor) -> PixtralForm | None:
    return _pixtral(vision, processor, merge=1) if vision.model_type == "pixtral" else None


def _pixtral(vision: _Vision, processor: ImageProcessor, merge: int) -> PixtralForm:
    size, patch = processor.size or Pixels(), vision.patch_size or 16
    edge = size.longest_edge or vision.image_size or 1024
    return PixtralForm(most=Size(size.width or edge, size.height or edge), patch=patch * merge)


def _qwen(_config: _Config, vision: _Vision, processor: ImageProcessor, *, patch: int) -> QwenForm:
    size = processor.size or Pixels()
    fewest, most = processor.min_pixels or size.shortest_edge, processor.max_pixels or size.longest_edge
    return QwenForm(
        fewest=_known(fewest or 56 * 56, "min_pixels"),
        most=_known(most or 1280 * 28 * 28, "max_pixels"),
        token=(vision.patch_size or patch) * vision.spatial_merge_size,
    )


def _known(value: int | None, name: str) -> int:
    if value is None or value < 1:
        raise ValueError(f"{name} is missing, or no positive number")
    return value


_FORMS: dict[str, Callable[[_Config, _Vision, ImageProcessor], PictureForm | None]] = {
    "Gemma3ForConditionalGeneration": _gemma3,
    "Idefics3ForConditionalGeneration": _idefics3,
    "LlavaForConditionalGeneration": _llava,
    "Mistral3ForConditionalGeneration": _mistral3,
    "Qwen2_5_VLForConditionalGeneration": partial(_qwen, patch=14),
    "Qwen3VLForConditionalGeneration": partial(_qwen, patch=16),
    "SmolVLMForConditionalGeneration": _idefics3,
}

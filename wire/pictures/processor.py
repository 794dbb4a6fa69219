"""What a checkpoint says of its image processor: in processor_config.json, or as older ones do in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from wire.model_files import read

Colours = tuple[float, float, float]


class Pixels(msgspec.Struct):
    """A size, whichever way it is given. Of Qwen's models the edges are how many pixels there are, all in all."""

    longest_edge: int | None = None
    shortest_edge: int | None = None
    height: int | None = None
    width: int | None = None


class _Said(msgspec.Struct):
    image_processor_type: str | None = None
    size: Pixels | None = None
    max_image_size: Pixels | None = None
    do_image_splitting: bool | None = None
    resample: int | None = None
    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_normalize: bool | None = None
    image_mean: float | Colours | None = None
    image_std: float | Colours | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


class ImageProcessor(msgspec.Struct, frozen=True):
    """What of it we heed, by default what is usual. `resample` is a number of Pillow's."""

    size: Pixels | None = None
    max_image_size: Pixels | None = None
    do_image_splitting: bool = True
    resample: int = 1  # Lanczos
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | Colours = 0.5
    image_std: float | Colours = 0.5
    min_pixels: int | None = None
    max_pixels: int | None = None


_CLIP: dict[str, Any] = {
    "resample": 3,  # bicubic
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
# What else is usual, by the beginning of a processor's name.
_FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3": {"resample": 2},  # bilinear
    "Pixtral": _CLIP,
    "Qwen2VL": _CLIP,
}


class _ProcessorConfig(msgspec.Struct):
    image_processor: _Said | None = None


def read_processor(path: Path) -> ImageProcessor:
    """Return what a model directory says; of one with neither file, what is usual.

    Raises ModelCardError naming file and field.
    """
    newer = read(path / "processor_config.json", _ProcessorConfig, missing=_ProcessorConfig())
    found = newer.image_processor or read(path / "preprocessor_config.json", _Said, missing=_Said())
    said = {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}
    kind = said.pop("image_processor_type", "")
    usual = next((fields for begin, fields in _FAMILIES.items() if kind.startswith(begin)), {})
    return ImageProcessor(**(usual | said))

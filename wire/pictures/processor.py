"""What a checkpoint says of its image processor: in processor_config.json, or as older ones do in a file of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from wire.model_files import read

Colours = tuple[float, float, float]


class Pixels(msgspec.Struct):
    """A size, whichever way it is given."""

    longest_edge: int | None = None
    height: int | None = None
    width: int | None = None


class ImageProcessor(msgspec.Struct):
    """What of it we heed; None where it does not say. `resample` is a number of Pillow's."""

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


class _ProcessorConfig(msgspec.Struct):
    image_processor: ImageProcessor | None = None


# By the beginning of its name, what transformers takes for what a processor does not say.
_BILINEAR, _BICUBIC, _LANCZOS = 2, 3, 1
_USUAL = ImageProcessor(resample=_LANCZOS, rescale_factor=1 / 255, image_mean=0.5, image_std=0.5)
_FAMILIES = {
    "Gemma3": ImageProcessor(resample=_BILINEAR),
    "Pixtral": ImageProcessor(
        resample=_BICUBIC,
        image_mean=(0.48145466, 0.4578275, 0.40821073),
        image_std=(0.26862954, 0.26130258, 0.27577711),
    ),
}


def read_processor(path: Path) -> ImageProcessor:
    """Return what a model directory says, of colours and resizing what is usual where it does not.

    Raises ModelCardError naming file and field.
    """
    newer = read(path / "processor_config.json", _ProcessorConfig, missing=_ProcessorConfig())
    found = newer.image_processor or read(path / "preprocessor_config.json", ImageProcessor, missing=ImageProcessor())
    name = found.image_processor_type or ""
    family = next((family for begin, family in _FAMILIES.items() if name.startswith(begin)), ImageProcessor())
    for field in ("resample", "rescale_factor", "image_mean", "image_std"):
        if getattr(found, field) is None:
            usual = getattr(family, field)
            setattr(found, field, getattr(_USUAL, field) if usual is None else usual)
    return found

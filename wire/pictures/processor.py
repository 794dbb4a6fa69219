"""What a checkpoint says of its image processor: in processor_config.json, or as older ones do in a file of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from wire.model_files import read


class Pixels(msgspec.Struct):
    """A size, whichever way it is given."""

    longest_edge: int | None = None
    height: int | None = None
    width: int | None = None


class ImageProcessor(msgspec.Struct):
    """What of it we heed. `resample` is a number of Pillow's."""

    size: Pixels | None = None
    max_image_size: Pixels | None = None
    do_image_splitting: bool | None = None
    resample: int | None = None


class _ProcessorConfig(msgspec.Struct):
    image_processor: ImageProcessor | None = None


def read_processor(path: Path) -> ImageProcessor:
    """Return what a model directory says; of one with neither file, nothing.

    Raises ModelCardError naming file and field.
    """
    newer = read(path / "processor_config.json", _ProcessorConfig, missing=_ProcessorConfig())
    return newer.image_processor or read(path / "preprocessor_config.json", ImageProcessor, missing=ImageProcessor())

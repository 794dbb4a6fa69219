"""A picture brought to the sizes that its model knows, and cut into tiles, as its layout says."""

from __future__ import annotations

import numpy as np
from PIL import Image as Pil

from wire.pictures import Layout


def tiles_of(picture: Pil.Image, layout: Layout, resample: Pil.Resampling) -> np.ndarray:
    """Return the tiles of a picture, [n, height, width, 3] in bytes; each resizing rounds to bytes, as in training."""
    for size in layout.sizes:
        picture = picture.resize(size, resample)
    pixels, (width, height) = np.asarray(picture), layout.tile
    if layout.rows == 0:
        return pixels[None]
    across = pixels.reshape(layout.rows, height, layout.columns, width, 3).swapaxes(1, 2)
    tiles = across.reshape(-1, height, width, 3)
    if not layout.has_overview:
        return tiles
    return np.concatenate([tiles, np.asarray(picture.resize(layout.tile, resample))[None]])

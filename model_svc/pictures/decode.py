"""From a picture's bytes to its pixels, upright and in red, green and blue; nobody's bytes can take much memory."""

from __future__ import annotations

import io
import warnings

from PIL import Image as Pil
from PIL import ImageOps

from wire.errors import InvalidRequestError
from wire.messages import Image

MAX_PIXELS = 1 << 26  # 192 MiB of colours, some of them twice; more than cameras make
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_PARAM = "messages"


def decode(image: Image, number: int) -> Pil.Image:
    """Return the pixels of a picture, the `number`-th of its prompt; what shines through stands on white.

    Raises InvalidRequestError for what is no picture, or a damaged or a huge one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which the pixels do without; of sizes we tell below
            found = Pil.open(io.BytesIO(image.data), formats=_FORMATS)
            width, height = found.size
            if width * height > MAX_PIXELS:
                message = f"picture {number} has {width} x {height} pixels; at most {MAX_PIXELS} can be looked at"
                raise InvalidRequestError(message, param=_PARAM)
            return _coloured(ImageOps.exif_transpose(found))
    except InvalidRequestError:
        raise
    except Exception as error:  # decoders raise whatever their bytes make them
        message = f"picture {number} ({image.media_type[:40]}) cannot be decoded: {str(error)[:120]}"
        raise InvalidRequestError(message, param=_PARAM) from error


def _coloured(picture: Pil.Image) -> Pil.Image:
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    clear = picture.convert("RGBA")
    return Pil.alpha_composite(Pil.new("RGBA", clear.size, (255, 255, 255, 255)), clear).convert("RGB")

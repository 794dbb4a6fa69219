"""What the first bytes of a picture say of it: its kind and its size. No pixel is decoded here."""

from __future__ import annotations

from io import BytesIO
from typing import NamedTuple

from PIL import ExifTags, Image

_MEDIA_TYPES = {
    "GIF": "image/gif",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",  # a JPEG with further ones behind it: what some cameras write
    "PNG": "image/png",
    "WEBP": "image/webp",
}
_READ = ("GIF", "JPEG", "PNG", "WEBP")
_TURNED = frozenset({5, 6, 7, 8})  # EXIF orientations that lay width and height the other way

# Pillow refuses by itself what has more; it is the most that a setting of ours can allow.
MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)


class Header(NamedTuple):
    """Kind and size of a picture, turned as it is looked at."""

    media_type: str
    width: int
    height: int


class TooManyPixelsError(ValueError):
    """A picture is larger than anything that is decoded."""


def header_of(data: bytes) -> Header:
    """Read a picture's header. Raises TooManyPixelsError, or ValueError for what is no picture of a known kind."""
    try:
        with Image.open(BytesIO(data), formats=_READ) as image:
            media_type = _MEDIA_TYPES[image.format or ""]
            width, height = image.size
            # The PNG reader's own method would decode the whole picture to look for EXIF behind it.
            orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise TooManyPixelsError from None
    except Exception as error:  # a reader may stumble over anything in a broken file
        raise ValueError("no picture of a known kind") from error
    return Header(media_type, height, width) if orientation in _TURNED else Header(media_type, width, height)

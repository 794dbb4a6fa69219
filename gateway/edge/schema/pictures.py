"""The pictures of one request: taken out of its body, checked from their headers, and kept apart from its messages.

They come in the body and nowhere else: a server that opened addresses for its clients would open those of its own
network, too. A picture that stands in a request several times is kept once.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from gateway.edge.picture_header import TooManyPixelsError, header_of
from gateway.edge.schema.sampling import fail
from wire.errors import InvalidRequestError
from wire.messages import Image, ImageRef, Images

_KINDS = ("image/png", "image/jpeg", "image/webp", "image/gif")
_NAMES = {"image/jpg": "image/jpeg"}
_DETAILS = ("auto", "low", "high", "original")
_SPACES = str.maketrans("", "", " \t\r\n")


class PictureLimits(NamedTuple):
    """How many pictures a request may have, and how large each may be."""

    number: int
    num_bytes: int
    pixels: int


class Pictures:
    """What was found so far. `refusal`: why there may be none."""

    def __init__(self, limits: PictureLimits, *, refusal: str = "") -> None:
        self._limits = limits
        self._refusal = refusal
        self._found: dict[bytes, Image] = {}
        self._number = 0

    @property
    def images(self) -> Images | None:
        """Return the pictures, None if there are none."""
        return Images(images=tuple(self._found.values())) if self._found else None

    def check_allowed(self, where: str) -> None:
        """Refuse a picture at this place if there may be none. Raises InvalidRequestError."""
        if self._refusal:
            raise fail(where, self._refusal)

    def from_url(self, url: str, where: str, detail: str | None = None, detail_at: str = "") -> ImageRef:
        """Take a data: URL. Raises InvalidRequestError naming the field."""
        if detail is not None and detail not in _DETAILS:
            raise fail(detail_at, f"must be one of {', '.join(_DETAILS)}, not {detail[:40]!r}.")
        if url[:5].lower() != "data:":
            raise _no_data(where)
        head, comma, data = url[5:].partition(",")
        media_type, *options = [word.strip().lower() for word in head[:200].split(";")]
        if not comma or "base64" not in options:
            raise fail(where, "must have the form data:image/png;base64,...")
        return self.from_base64(media_type, data, where, media_type_at=where)

    def from_base64(self, media_type: str, data: str, where: str, *, media_type_at: str) -> ImageRef:
        """Take a picture's bytes in base64. Raises InvalidRequestError naming the field."""
        if _NAMES.get(media_type, media_type) not in _KINDS:
            raise fail(media_type_at, f"must be a picture ({', '.join(_KINDS)}), not {media_type[:40]!r}.")
        raw = self._decoded(data, where)
        try:
            header = header_of(raw)
        except TooManyPixelsError:
            raise self._too_many_pixels(where, "more than can be decoded") from None
        except ValueError:
            raise fail(where, f"is no picture that can be read ({', '.join(_KINDS)}).") from None
        if header.width * header.height > self._limits.pixels:
            raise self._too_many_pixels(where, f"{header.width} x {header.height}")
        self._number += 1
        if self._number > self._limits.number:
            raise fail(where, f"is one picture too many; a request may have {self._limits.number}.")
        image = Image.of(header.media_type, raw)  # by what it is; clients mix the names up
        self._found[image.digest] = image
        return ImageRef(offset=0, digest=image.digest, width=header.width, height=header.height)

    def _decoded(self, data: str, where: str) -> bytes:
        most = self._limits.num_bytes
        if len(data) // 4 * 3 <= most + len(data) // 8:  # lines may be broken
            try:
                raw = base64.b64decode(data.translate(_SPACES) if "\n" in data or " " in data else data, validate=True)
            except (binascii.Error, ValueError):
                raise fail(where, "is not base64.") from None
            if len(raw) <= most:
                return raw
        raise fail(where, f"is a picture of more than {most} bytes.")

    def _too_many_pixels(self, where: str, found: str) -> InvalidRequestError:
        return fail(where, f"has {found} pixels; a picture may have {self._limits.pixels}.")


def _no_data(where: str) -> InvalidRequestError:
    return fail(
        where,
        "must be a data: URL that holds the picture (data:image/png;base64,...). This server opens no addresses that "
        "clients name: they could lead into its own network.",
    )

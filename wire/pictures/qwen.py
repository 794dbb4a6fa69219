"""Qwen's way, from Qwen2-VL on: a picture keeps its form, its number of pixels has bounds, and edges are whole tokens.

The arithmetic and its rounding are those of transformers' `smart_resize`.
"""

from __future__ import annotations

import math

import msgspec

from wire.errors import InvalidRequestError
from wire.pictures.layout import Layout, Size

_LONGEST = 200  # times the shorter edge; transformers refuses what is longer, too


class QwenForm(msgspec.Struct, frozen=True, kw_only=True):
    """Pixels: a picture has `fewest` to `most` of them, all in all; one token stands for `token` x `token`."""

    fewest: int
    most: int
    token: int
    placeholder: str = "<|image_pad|>"
    image_token: str = "<|image_pad|>"

    def layout(self, width: int, height: int) -> Layout:
        """Return what becomes of a picture of so many pixels. Raises InvalidRequestError for one that is too thin."""
        if max(width, height) > _LONGEST * min(width, height):
            reason = f"a picture of {width} x {height} pixels is too thin for this model: at most {_LONGEST} to 1"
            raise InvalidRequestError(reason, param="messages")
        rows, columns = round(height / self.token), round(width / self.token)
        pixels, each = rows * columns * self.token**2, self.token
        if pixels > self.most:
            shrink = math.sqrt(height * width / self.most)
            rows, columns = (max(1, math.floor(edge / shrink / each)) for edge in (height, width))
        elif pixels < self.fewest:
            grow = math.sqrt(self.fewest / (height * width))
            rows, columns = (math.ceil(edge * grow / each) for edge in (height, width))
        size, num_tokens = Size(columns * each, rows * each), rows * columns
        return Layout(sizes=(size,), text=self.image_token * num_tokens, num_image_tokens=num_tokens, tile=size)

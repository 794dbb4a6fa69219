"""Pixtral's way, as Mistral 3 has it: a picture keeps its form, rows of patches end with a token of their own."""

from __future__ import annotations

import msgspec

from wire.pictures.layout import Layout, Size

_BREAK, _END = "[IMG_BREAK]", "[IMG_END]"


class PixtralForm(msgspec.Struct, frozen=True, kw_only=True):
    """Pixels: a picture that is larger than `most` is made smaller; one token stands for `patch` x `patch` of it."""

    most: Size
    patch: int
    placeholder: str = "[IMG]"
    image_token: str = "[IMG]"

    def layout(self, width: int, height: int) -> Layout:
        """Return what becomes of a picture of so many pixels."""
        ratio = max(height / self.most.height, width / self.most.width)
        if ratio > 1:
            width, height = int(width / ratio), int(height / ratio)
        columns, rows = self._patches(width), self._patches(height)
        row = self.image_token * columns + _BREAK
        size = Size(columns * self.patch, rows * self.patch)
        text = (row * rows).removesuffix(_BREAK) + _END
        return Layout(sizes=(size,), text=text, num_image_tokens=rows * columns, tile=size)

    def _patches(self, pixels: int) -> int:
        """Return how many patches cover an edge; one at least, however thin the picture is."""
        return max(-(-pixels // self.patch), 1)

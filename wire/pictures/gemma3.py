"""Gemma 3: every picture is a square of one size and takes the same number of tokens (no pan and scan)."""

from __future__ import annotations

import msgspec

from wire.pictures.layout import Layout, Size


class Gemma3Form(msgspec.Struct, frozen=True, kw_only=True):
    """A picture is resized to `size` and has `num_tokens` image tokens."""

    size: Size
    num_tokens: int
    placeholder: str = "<start_of_image>"
    image_token: str = "<image_soft_token>"

    def layout(self, width: int, height: int) -> Layout:
        """Return what becomes of a picture, whatever its pixels."""
        del width, height
        images = self.image_token * self.num_tokens
        text = f"\n\n{self.placeholder}{images}<end_of_image>\n\n"
        return Layout(sizes=(self.size,), text=text, num_image_tokens=self.num_tokens, tile=self.size)

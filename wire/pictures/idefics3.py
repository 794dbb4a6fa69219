"""Idefics3 and SmolVLM: a picture is brought to one length, cut into square tiles, and shown whole behind them.

The steps and their rounding are those of transformers' processors of both families, which are the same.
"""

from __future__ import annotations

import math

import msgspec

from wire.pictures.layout import Layout, Size

_LONGEST = 4096  # whatever a checkpoint says
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


class Idefics3Form(msgspec.Struct, frozen=True, kw_only=True):
    """Pixels: pictures are resized to a `longest_edge` (None: to `fixed`), tiles have `tile` x `tile`.

    `splits` False: no tiles, the whole alone. A tile has `tile_tokens` image tokens.
    """

    longest_edge: int | None
    fixed: Size
    tile: int
    splits: bool
    tile_tokens: int
    placeholder: str = "<image>"
    image_token: str = "<image>"

    def layout(self, width: int, height: int) -> Layout:
        """Return what becomes of a picture of so many pixels."""
        first = self.fixed if self.longest_edge is None else _bounded(_with_longest(width, height, self.longest_edge))
        tile = Size(self.tile, self.tile)
        if not self.splits:
            return Layout(sizes=(first, tile), text=self._whole(), num_image_tokens=self.tile_tokens, tile=tile)
        whole_tiles = self._whole_tiles(first)
        rows, columns = whole_tiles.height // self.tile, whole_tiles.width // self.tile
        if rows == columns == 1:
            return Layout(sizes=(first, whole_tiles), text=self._whole(), num_image_tokens=self.tile_tokens, tile=tile)
        return Layout(
            sizes=(first, whole_tiles),
            text=self._tiles(rows, columns) + "\n" + self._whole(),
            num_image_tokens=(rows * columns + 1) * self.tile_tokens,
            rows=rows,
            columns=columns,
            tile=tile,
            has_overview=True,
        )

    def _whole_tiles(self, size: Size) -> Size:
        """Return the size in whole tiles; the shorter edge follows the longer one, before it is rounded, too."""
        ratio = size.width / size.height
        if size.width >= size.height:
            width = self._up(size.width)
            return Size(width, self._up(int(width / ratio)))
        height = self._up(size.height)
        return Size(self._up(int(height * ratio)), height)

    def _up(self, pixels: int) -> int:
        return math.ceil(pixels / self.tile) * self.tile

    def _tiles(self, rows: int, columns: int) -> str:
        images = self.image_token * self.tile_tokens
        return "".join(
            "".join(f"{_AROUND}<row_{row}_col_{column}>{images}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )

    def _whole(self) -> str:
        return f"{_AROUND}{_WHOLE}{self.image_token * self.tile_tokens}{_AROUND}"


def _with_longest(width: int, height: int, longest: int) -> Size:
    """Return the size with that longer edge; the shorter one is even."""
    ratio = width / height
    if width >= height:
        return Size(longest, max(_even(int(longest / ratio)), 1))
    return Size(max(_even(int(longest * ratio)), 1), longest)


def _bounded(size: Size) -> Size:
    width, height = size
    ratio = width / height
    if width >= height and width > _LONGEST:
        width, height = _LONGEST, int(_LONGEST / ratio)
    elif height > width and height > _LONGEST:
        width, height = int(_LONGEST * ratio), _LONGEST
    return Size(max(width, 1), max(height, 1))


def _even(pixels: int) -> int:
    return pixels + pixels % 2

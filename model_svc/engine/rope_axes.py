"""Rotary positions of prompts whose pictures have two dimensions (M-RoPE, arXiv 2409.12191): three axes for each token.

Text counts on along all three. Of a picture that begins at position p all tokens have p on the first axis, p and their
row on the second, p and their column on the third; the text behind it goes on p and the longer edge. So positions hang
on nothing but what came before, as blocks do, and behind pictures they are indices less a number: the *shift*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class PictureAxes(NamedTuple):
    """A picture of `rows` x `columns` tokens, one after another from index `begin` on; `shift` is that before it."""

    begin: int
    rows: int
    columns: int
    shift: int = 0

    @property
    def end(self) -> int:
        """The first index behind it."""
        return self.begin + self.rows * self.columns

    @property
    def shift_behind(self) -> int:
        """What positions behind it are more than their indices: 0 or less."""
        return self.shift + max(self.rows, self.columns) - self.rows * self.columns


def shift_at(pictures: Sequence[PictureAxes], index: int) -> int:
    """Return the shift of a token that is no picture's, by a sequence's pictures in order."""
    return next((picture.shift_behind for picture in reversed(pictures) if picture.end <= index), 0)


def axes(pictures: Sequence[PictureAxes], start: int, end: int) -> np.ndarray:
    """Return the positions of the tokens from `start` to `end` along each axis, int32 [3, end - start]."""
    found = np.arange(start, end, dtype=np.int32) + np.zeros((3, 1), dtype=np.int32)
    for picture in pictures:
        first, last = (min(max(index, start), end) for index in (picture.begin, picture.end))
        along = np.arange(first, last) - picture.begin
        at = picture.begin + picture.shift
        found[:, first - start : last - start] = at
        found[1, first - start : last - start] += along // picture.columns
        found[2, first - start : last - start] += along % picture.columns
        found[:, last - start :] += picture.shift_behind - picture.shift
    return found

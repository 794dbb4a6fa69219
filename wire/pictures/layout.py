"""How a picture comes before a model: to which sizes it is brought, and which text stands for it in a prompt."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Size(NamedTuple):
    """Pixels."""

    width: int
    height: int


class Layout(NamedTuple):
    """What becomes of one picture.

    It is resized to each of `sizes`, one after another, and then cut into `rows` x `columns` tiles of `tile` pixels,
    row by row. `has_overview`: the whole, resized once more to `tile`, comes behind the tiles. Without rows it is left
    whole. `text` stands for it in a prompt, control tokens spelled out; `num_image_tokens` of these are the model's
    image token, in the order of tiles, overview last, each row by row.
    """

    sizes: tuple[Size, ...]
    text: str
    num_image_tokens: int
    rows: int = 0
    columns: int = 0
    tile: Size = Size(0, 0)
    has_overview: bool = False

    @property
    def num_tiles(self) -> int:
        """Return how many pictures the vision tower sees."""
        return self.rows * self.columns + 1 if self.has_overview else max(self.rows * self.columns, 1)


class PictureForm(Protocol):
    """How a family of models sees pictures."""

    @property
    def placeholder(self) -> str:
        """Return the control token that a chat template writes where a picture stands."""
        ...

    @property
    def image_token(self) -> str:
        """Return the control token in whose places the model puts what it has seen."""
        ...

    def layout(self, width: int, height: int) -> Layout:
        """Return what becomes of a picture of so many pixels."""
        ...

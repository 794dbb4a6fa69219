"""Pieces of grammars in llguidance's Lark dialect that the styles of tool calls share."""

from __future__ import annotations

import json
from typing import NamedTuple

from wire.model_card import ModelCard

MAX_CALLS = 32


TEXT = r"TEXT: /(.|\n)*/"


class Opening(NamedTuple):
    """How calls begin: a marker, as `tag_of` writes it, and what follows it until text may come again, as Lark."""

    marker: str
    rest: str


class Calls(NamedTuple):
    """How a style writes calls.

    What stands behind an opening is one call, or, `in_sections`, all of them. Calls that must come begin with the first
    opening, parted by `separator`; a model that may call may begin with any. `rules` is what openings refer to.
    """

    openings: tuple[Opening, ...]
    rules: list[str]
    separator: str = ""
    in_sections: bool = False

    def always(self, *, many: bool) -> list[str]:
        """Return the rules of an answer that is calls and nothing else."""
        marker, rest = self.openings[0]
        start = "block" if self.in_sections else repeated(self.separator, "block", many)
        return [f"start: {start}", f"block: {marker} {rest}", *self.rules]

    def once_begun(self, *, many: bool) -> list[str]:
        """Return the rules of an answer that is free up to a marker, and behind what follows that."""
        rules = [f"start: block{f'{{0,{MAX_CALLS}}}' if many else '?'} TEXT"]
        rules.append("block: " + " | ".join(f"block_{at}" for at in range(len(self.openings))))
        for at, (marker, rest) in enumerate(self.openings):
            if marker.startswith("<["):  # a control token is no part of any text
                rules.append(f"block_{at}: TEXT {marker} {rest}")
            else:
                rules += [f"block_{at}: trigger_{at} {rest}", f"trigger_{at}[lazy]: TEXT {marker}"]
        return [*rules, *([] if TEXT in self.rules else [TEXT]), *self.rules]


def quote(text: str) -> str:
    """Write a text."""
    return json.dumps(text)


def tag_of(text: str, card: ModelCard) -> str:
    """Write a tag: by its number if it is a control token, which has no bytes."""
    token_id = card.tool_tags.get(text)
    return quote(text) if token_id is None else f"<[{token_id}]>"


def repeated(separator: str, item: str, many: bool) -> str:
    """Write one item, or one and more of them."""
    if not many:
        return item
    return f"{item} ({quote(separator)} {item}){{0,{MAX_CALLS - 1}}}" if separator else f"{item}{{1,{MAX_CALLS}}}"


def any_of(count: int) -> str:
    """Write the rule `call`: any of so many."""
    return "call: " + " | ".join(f"call_{at}" for at in range(count))

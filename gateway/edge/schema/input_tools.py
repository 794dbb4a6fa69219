"""Tools that stand in the input of a response: they hold for it and for those that go on from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.edge.schema.items import Item
from gateway.edge.schema.tools import is_unasked

ADDITIONAL = "additional_tools"
Placed = tuple[str, dict[str, Any]]
"""A tool, behind its place in the body."""


def parted(items: str | list[Item] | None, where: str) -> tuple[str | list[Item], list[Placed]]:
    """Part the input from the tools that stand in it (`additional_tools`); returns these with their places.

    Agents repeat what they said before: of tools of one name the last one counts.
    """
    items = [] if items is None else items
    if isinstance(items, str) or not any(item.type == ADDITIONAL for item in items):
        return items, []
    found = [
        (f"{where}[{at}].tools[{number}]", tool)
        for at, item in enumerate(items)
        for number, tool in enumerate(item.tools or () if item.type == ADDITIONAL else ())
    ]
    return [item for item in items if item.type != ADDITIONAL], latest(found)


def latest(tools: Iterable[Placed]) -> list[Placed]:
    """Return the last tool of each name, where the first one stood: what is said again leaves the prompt as it was."""
    return list({_named(tool): (place, tool) for place, tool in tools}.values())


def inherited(tools: Sequence[dict[str, Any]], declared: Sequence[dict[str, Any]] | None) -> list[Placed]:
    """Return the tools of the responses before, with a place, but for those that the request declares again."""
    again = {_named(tool) for tool in declared or ()}
    place = f"previous_response_id.{ADDITIONAL}"
    return [(f"{place}[{at}]", tool) for at, tool in enumerate(tools) if _named(tool) not in again]


def _named(tool: dict[str, Any]) -> tuple[str, str]:
    return str(tool.get("type")), str(tool.get("name"))


def kept(more: Sequence[Placed]) -> dict[str, Any]:
    """Return what a response says of the tools in its input: they hold for those that go on from it."""
    tools = [tool for _, tool in more if not is_unasked(tool)]
    return {ADDITIONAL: tools} if tools else {}

"""Stored objects that a request's body refers to, looked up at the history desk before the request runs.

References to items in its input, and tools that stood in the input of the responses before it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.edge.desks.history import HistoryClient
from gateway.edge.identity import has_tools, partition_of, root_of
from gateway.edge.schema.input_tools import ADDITIONAL
from gateway.edge.schema.items import Item
from gateway.edge.schema.kinds import missing
from gateway.edge.schema.sampling import fail
from wire.errors import NotFoundError

MAX_REFERENCES = 100


async def resolve(
    items: str | list[Item] | None, history: HistoryClient, *, tenant: str, partitions: int
) -> str | list[Item] | None:
    """Return the input with the items that were meant. Raises NotFoundError naming the reference."""
    if items is None or isinstance(items, str):
        return items
    places = [at for at, item in enumerate(items) if _is_reference(item)]
    if not places:
        return items
    if len(places) > MAX_REFERENCES:
        raise fail("input", f"at most {MAX_REFERENCES} item references, not {len(places)}.")
    ids = [items[at].id or "" for at in places]
    for at, item_id in zip(places, ids, strict=True):
        if not item_id:
            raise missing(f"input[{at}].id")
    partition = partition_of(root_of(ids[0]), partitions)
    try:
        found = await history.call(partition, "find_items", tenant, ids=ids)
    except NotFoundError as error:
        at = next(
            (at for at, item_id in zip(places, ids, strict=True) if repr(item_id[:80]) in error.message), places[0]
        )
        raise NotFoundError(f"input[{at}].id: {error.message}", param=f"input[{at}].id") from None
    resolved = list(items)
    for at, item in zip(places, found, strict=True):
        resolved[at] = msgspec.convert(item, Item)
    return resolved


async def tools_before(response_id: str | None, history: HistoryClient, *, tenant: str, partitions: int) -> list[Any]:
    """Return the tools that stood in the input of the response that is gone on from, and of those before it."""
    if response_id is None or not has_tools(response_id):
        return []
    try:
        partition = partition_of(root_of(response_id), partitions)
        found = await history.call(partition, "get_response", tenant, id=response_id)
    except NotFoundError:  # which the request itself will be told
        return []
    tools: list[Any] = found.get(ADDITIONAL, [])
    return tools


def _is_reference(item: Item) -> bool:
    """A type may be left out of a reference, as it may of a message; then only the id is there."""
    return item.type == "item_reference" or (item.type == "message" and item.role is None and bool(item.id))

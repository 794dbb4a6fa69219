"""/v1/conversations/{id}/items: list, put behind, read, delete."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.desks.history import packed, plain
from gateway.edge.edge import Edge
from gateway.edge.identity import new_id, partition_of, root_of, tenant_of
from gateway.edge.jsontext import json_response
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as, translated
from gateway.edge.schema.conversations import CreateItems
from gateway.edge.schema.items import translate_items
from gateway.edge.schema.paging import read_include, read_page
from gateway.edge.schema.responses import IMAGE_URLS, LOGPROBS
from gateway.edge.schema.sampling import fail
from wire.messages import Request as WireRequest

MAX_ITEMS = 20


async def list_items(request: Request) -> Response:
    """Return a page of the items of a conversation."""
    include, page = read_include(request), read_page(request, order="desc")
    found = await _ask(request, "list_items", pictures=IMAGE_URLS in include, **page)
    return json_response({**found, "data": [_shown(item, include) for item in found["data"]]})


async def create_items(request: Request) -> Response:
    """Put items behind a conversation; they are in the next prompt."""
    edge: Edge = request.app.state.edge
    read_include(request)
    body = await read_as(request, CreateItems, edge.seeing.max_body_bytes)
    if not 1 <= len(body.items) <= MAX_ITEMS:
        raise fail("items", f"must be 1 to {MAX_ITEMS} items, not {len(body.items)}.")
    root = root_of(request.path_params["id"])
    pictures = edge.seeing.kept_pictures()
    items = await translated(request, lambda: translate_items(body.items, "items", root=root, pictures=pictures))
    if not items:
        raise fail("items", "hold reasoning only; it belongs to what the assistant says after it.")
    wanted = WireRequest(model="", messages=items, tenant=tenant_of(request))
    items = (await screen(wanted, edge.safety, "items")).messages
    given = {"items": plain(items), "images": packed(pictures.images)}
    return json_response(await _ask(request, "add_items", turn=new_id("add", root), **given))


async def get_item(request: Request) -> Response:
    """Return one item."""
    include = read_include(request)
    item_id, shows = request.path_params["item_id"], IMAGE_URLS in include
    return json_response(_shown(await _ask(request, "get_item", item_id=item_id, pictures=shows), include))


async def delete_item(request: Request) -> Response:
    """Take an item out of its conversation, which is returned."""
    return json_response(await _ask(request, "delete_item", item_id=request.path_params["item_id"]))


async def _ask(request: Request, op: str, **args: Any) -> Any:
    edge: Edge = request.app.state.edge
    conversation_id = request.path_params["id"]
    partition = partition_of(root_of(conversation_id), edge.settings.partitions)
    return await edge.history.call(partition, op, tenant_of(request), id=conversation_id, **args)


def _shown(item: dict[str, Any], include: frozenset[str]) -> dict[str, Any]:
    """Leave log probabilities out unless they are asked for."""
    if LOGPROBS in include or item["type"] != "message":
        return item
    return {**item, "content": [part | {"logprobs": []} if "logprobs" in part else part for part in item["content"]]}

"""/v1/conversations: create, read, update, delete, and the list of all (our extension)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.desks.history import packed, plain
from gateway.edge.edge import Edge
from gateway.edge.identity import new_id, new_root, partition_of, root_of, tenant_of
from gateway.edge.jsontext import json_response
from gateway.edge.safety.screening import screen, screen_metadata
from gateway.edge.schema.body import decode_body, read_body
from gateway.edge.schema.conversations import CreateConversation, UpdateConversation
from gateway.edge.schema.items import translate_items
from gateway.edge.schema.paging import read_page
from gateway.edge.schema.responses import check_metadata
from wire.messages import Request as WireRequest


async def create_conversation(request: Request) -> Response:
    """Make a conversation; its id is chosen here, because it decides the partition."""
    edge: Edge = request.app.state.edge
    raw = await read_body(request, edge.seeing.max_body_bytes)
    body = await decode_body(raw, CreateConversation) if raw.strip() else CreateConversation()
    root = new_root()
    pictures = edge.seeing.kept_pictures()
    items = translate_items(body.items or [], "items", root=root, pictures=pictures)
    owned = WireRequest(model="", messages=items, tenant=tenant_of(request))
    items = (await screen(owned, edge.safety, "items")).messages
    metadata = await screen_metadata(check_metadata(body.metadata), owned, edge.safety)
    conversation = await edge.history.call(
        partition_of(root, edge.settings.partitions),
        "create_conversation",
        tenant_of(request),
        id=new_id("conv", root),
        metadata=metadata,
        items=plain(items),
        images=packed(pictures.images),
    )
    return json_response(conversation)


async def list_conversations(request: Request) -> Response:
    """Return the conversations, newest first, merged over the partitions."""
    edge: Edge = request.app.state.edge
    page = read_page(request)
    found = [
        await edge.history.call(partition, "list_conversations", tenant_of(request), **page)
        for partition in range(edge.settings.partitions)
    ]
    return json_response(found[0] if len(found) == 1 else _merged(found, page["limit"]))


async def get_conversation(request: Request) -> Response:
    """Return one conversation."""
    return await _ask(request, "get_conversation")


async def update_conversation(request: Request) -> Response:
    """Replace the metadata of a conversation."""
    edge: Edge = request.app.state.edge
    body = await decode_body(await read_body(request, edge.settings.max_body_bytes), UpdateConversation)
    owned = WireRequest(model="", tenant=tenant_of(request))
    metadata = await screen_metadata(check_metadata(body.metadata), owned, edge.safety)
    return await _ask(request, "update_conversation", metadata=metadata)


async def delete_conversation(request: Request) -> Response:
    """Delete a conversation and its turns."""
    return await _ask(request, "delete_conversation")


async def _ask(request: Request, op: str, **args: Any) -> Response:
    edge: Edge = request.app.state.edge
    conversation_id = request.path_params["id"]
    partition = partition_of(root_of(conversation_id), edge.settings.partitions)
    return json_response(await edge.history.call(partition, op, tenant_of(request), id=conversation_id, **args))


def _merged(pages: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    data = [item for page in pages for item in page["data"]]
    data.sort(key=lambda item: (item["updated_at"], item["id"]), reverse=True)
    kept = data[:limit]
    return {
        "object": "list",
        "data": kept,
        "has_more": len(data) > limit or any(page["has_more"] for page in pages),
        "first_id": kept[0]["id"] if kept else "",
        "last_id": kept[-1]["id"] if kept else "",
    }

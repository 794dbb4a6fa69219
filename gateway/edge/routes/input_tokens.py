"""POST /v1/responses/input_tokens: how many tokens a response's input would be, with what its conversation holds."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.identity import partition_of, root_of, tenant_of
from gateway.edge.jsontext import json_response
from gateway.edge.references import resolve
from gateway.edge.routes.responses import tell_of_tools
from gateway.edge.schema.body import read_as, translated
from gateway.edge.schema.responses import InputTokensRequest, translate_responses
from wire.messages import ConversationRef, Recalled


async def count_input_tokens(request: Request) -> Response:
    """Return the number; nothing is generated or stored, and nothing is left out for being too long."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, InputTokensRequest, edge.settings.max_body_bytes)
    card, tenant = edge.model(body.model).card, tenant_of(request)
    tell_of_tools(request, body)
    body.input = await resolve(body.input, edge.history, tenant=tenant, partitions=edge.settings.partitions)
    wanted = await translated(request, lambda: translate_responses(body, card, tenant=tenant, counting=True))
    with edge.admission.slot():
        recalled = await _recalled(edge, wanted.conversation, wanted.model, tenant)
        ids = await edge.tokenizer.token_ids(wanted, recalled=recalled)
    return json_response({"object": "response.input_tokens", "input_tokens": len(ids)})


async def _recalled(edge: Edge, ref: ConversationRef | None, model: str, tenant: str) -> Recalled | None:
    """Return what was said before, if the request goes on with something."""
    before = ref.conversation_id or ref.previous_response_id if ref is not None else None
    if ref is None or before is None:
        return None
    partition = partition_of(root_of(before), edge.settings.partitions)
    names = {"conversation_id": ref.conversation_id, "previous_response_id": ref.previous_response_id}
    found = await edge.history.call(partition, "recall", tenant, model=model, **names)
    return await anyio.to_thread.run_sync(msgspec.convert, found, Recalled)

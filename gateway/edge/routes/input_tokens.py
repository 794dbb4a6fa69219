"""POST /v1/responses/input_tokens: how many tokens a response's input would be, with what its conversation holds."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.identity import partition_of, root_of, tenant_of
from gateway.edge.jsontext import json_response
from gateway.edge.routes.responses import read_wanted
from wire.messages import ConversationRef, Recalled
from wire.threads import in_thread


async def count_input_tokens(request: Request) -> Response:
    """Return the number; nothing is generated or stored, and nothing is left out for being too long."""
    edge: Edge = request.app.state.edge
    _, wanted, _ = await read_wanted(request)
    with edge.admission.slot():
        recalled = await _recalled(edge, wanted.conversation, wanted.model, tenant_of(request))
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
    return await in_thread(msgspec.convert, found, Recalled)

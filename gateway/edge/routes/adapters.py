"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, vLLM's: for operators, where a setting allows it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.edge.edge import Edge
from gateway.edge.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from gateway.edge.schema.body import read_as
from gateway.edge.tenancy.caller import current
from wire.errors import ForbiddenError, InvalidRequestError

_MAX_BYTES = 16 * 1024


async def load_adapter(request: Request) -> Response:
    """Load an adapter in all replicas of its model; it is served when this returns."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, LoadAdapterRequest, _MAX_BYTES)
    _check_may(edge)
    body.check()
    models = edge.adapters.models
    model = body.model or (models[0] if models else "")
    if model not in models:
        message = f"model: {model[:80]!r} is no model here that generates; it must be one of {', '.join(models)}"
        raise InvalidRequestError(message, param="model")
    await edge.adapters.load(model, body.lora_name, body.lora_path, replace=body.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """Serve an adapter no longer; answers that it has begun go on to their end."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, UnloadAdapterRequest, _MAX_BYTES)
    _check_may(edge)
    await edge.adapters.unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _check_may(edge: Edge) -> None:
    """Raise ForbiddenError unless adapters may change at run time, and this caller may change them."""
    if not edge.settings.adapter_dir:
        raise ForbiddenError("Adapters are read at the start here; set adapter_dir so that they can come and go.")
    caller = current.get()
    if caller is not None and not caller.key.operator:
        raise ForbiddenError("This key is no operator's; `operator = true` in the file of keys makes it one.")

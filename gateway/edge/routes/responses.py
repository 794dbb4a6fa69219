"""/v1/responses: create, read (also as a stream again), cancel, delete, and the items that went in."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.identity import partition_of, root_of, tenant_of
from gateway.edge.jsontext import json_response
from gateway.edge.references import resolve, tools_before
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as, translated, warn
from gateway.edge.schema.input_tools import parted
from gateway.edge.schema.paging import read_include, read_page
from gateway.edge.schema.response_fold import fold
from gateway.edge.schema.response_object import RUNNING
from gateway.edge.schema.responses import IMAGE_URLS, ResponsesRequest, translate_responses
from gateway.edge.schema.responses_reply import ResponsesReply
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.tools import is_unasked
from gateway.edge.streaming import EventStream
from gateway.edge.tracing import trace_headers
from wire import messages
from wire.errors import ConflictError, NotFoundError
from wire.threads import in_thread


async def create_response(request: Request) -> ASGIApp:
    """Answer a request of the Responses API: as a stream, whole, or in the background."""
    edge: Edge = request.app.state.edge
    body, wanted, images = await read_wanted(request)
    wanted = await screen(wanted, edge.safety, "input")
    warn(request, *await edge.grammars.admit(wanted))
    stream = bool(body.stream)
    parent = trace_headers(request.headers)
    if body.background or body.is_resumable:
        begun = await edge.background.start(wanted, parent, images)
        response = begun.begun("queued")
        return _events(edge, response["id"], -1) if stream else json_response(response)
    reply = ResponsesReply(wanted)
    return GenerationResponse(
        lambda: edge.generate(wanted, reply, operation="chat", stream=stream, parent=parent, images=images),
        stream=stream,
        settings=edge.settings,
    )


async def read_wanted(request: Request) -> tuple[ResponsesRequest, messages.Request, messages.Images | None]:
    """Read a body of the Responses API, and translate it with the items that it refers to in their places.

    The third is its pictures.
    """
    edge: Edge = request.app.state.edge
    body = await read_as(request, ResponsesRequest, edge.seeing.max_body_bytes)
    card, tenant = edge.served.model(body.model).card, tenant_of(request)
    _tell_of_tools(request, body)
    body.input = await resolve(body.input, edge.history, tenant=tenant, partitions=edge.settings.partitions)
    before = await tools_before(
        body.previous_response_id, edge.history, tenant=tenant, partitions=edge.settings.partitions
    )
    pictures = edge.seeing.pictures(body.model)
    wanted = await translated(
        request, lambda: translate_responses(body, card, tenant=tenant, before=before, pictures=pictures)
    )
    return body, wanted, pictures.images


def _tell_of_tools(request: Request, body: ResponsesRequest) -> None:
    """Name the tools in a header that are left out: nobody runs them here."""
    tools = [*(body.tools or ()), *(tool for _, tool in parted(body.input, "input")[1])]
    kinds = sorted({str(tool["type"]) for tool in tools if is_unasked(tool)})
    if kinds:
        warn(request, f"tools that are not run here: {', '.join(kinds)}")


async def get_response(request: Request) -> ASGIApp:
    """Return a stored response, or one that is being made; as the stream of its events if that is asked for."""
    edge: Edge = request.app.state.edge
    read_include(request)
    after = _starting_after(request)
    found = await _found(request)
    if after is None:
        return json_response(await _with_progress(edge, found))
    if (found["status"] not in RUNNING or not found.get("background")) and not await edge.background.has(found["id"]):
        raise fail("stream", "the events of this response are not kept, or not any more.")
    return _events(edge, found["id"], after)


async def cancel_response(request: Request) -> Response:
    """Cancel a response that is made in the background; one that is over stays as it is."""
    edge: Edge = request.app.state.edge
    found = await _found(request)
    if not found.get("background"):
        raise fail("response_id", "only a response that is made in the background can be cancelled.")
    if found["status"] in RUNNING:
        await edge.background.cancel(found["id"])
        if found["status"] == "in_progress":  # what was said is still being stored
            await edge.background.ended(found["id"])
        found = await _found(request)
    return json_response(await _with_progress(edge, found))


async def delete_response(request: Request) -> Response:
    """Delete a response; one that is made in the background is cancelled first."""
    edge: Edge = request.app.state.edge
    try:
        return json_response(await _ask(request, "delete_response"))
    except ConflictError:
        found = await _found(request)
        if not found.get("background"):
            raise
    await edge.background.cancel(found["id"])
    return json_response(await _ask(request, "delete_response", running=True))


async def compact(_request: Request) -> Response:
    """Say that there is no compaction: OpenAI's is sealed, and agents make a summary themselves where it is refused."""
    raise NotFoundError("Compaction is not supported; ask for a summary in a message, and go on from that.")


async def list_input_items(request: Request) -> Response:
    """Return the items that went into a stored response."""
    shows = IMAGE_URLS in read_include(request)
    page = read_page(request, order="desc")
    return json_response(await _ask(request, "list_input_items", pictures=shows, **page))


async def _found(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = await _ask(request, "get_response")
    return found


async def _ask(request: Request, op: str, **args: Any) -> Any:
    edge: Edge = request.app.state.edge
    response_id = request.path_params["id"]
    partition = partition_of(root_of(response_id), edge.settings.partitions)
    return await edge.history.call(partition, op, tenant_of(request), id=response_id, **args)


async def _with_progress(edge: Edge, found: dict[str, Any]) -> dict[str, Any]:
    """Add the output so far to a response that is made in the background and not stored yet."""
    if not found.get("background") or found["output"] or found["status"] not in {*RUNNING, "cancelled"}:
        return found
    entries = await edge.background.log(found["id"]).read_all()
    output = await in_thread(lambda: fold(event for entry in entries for event in entry.events()))
    return {**found, "output": output}


def _events(edge: Edge, response_id: str, after: int) -> EventStream:
    return EventStream(
        edge.background.events(response_id, after),
        keep_alive_s=edge.settings.keep_alive_s,
        send_timeout_s=edge.settings.send_timeout_s,
        headers={},
    )


def _starting_after(request: Request) -> int | None:
    """Return the number of the event to go on behind (-1: from the first), or None if no stream is asked for."""
    query = request.query_params
    stream, after = query.get("stream", "false").lower(), query.get("starting_after")
    if after is None and stream == "true":  # what a browser's EventSource sends when it comes back
        after = request.headers.get("last-event-id")
    if stream not in ("true", "false"):
        raise fail("stream", f"must be true or false, not {stream[:40]!r}.")
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 10):
        raise fail("starting_after", f"must be the number of an event, not {after[:40]!r}.")
    if stream == "false":
        if after is not None:
            raise fail("starting_after", "is only allowed with stream=true.")
        return None
    return -1 if after is None else int(after)

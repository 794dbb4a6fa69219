"""POST /v1/completions."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from gateway.edge.completion import GenerationResponse
from gateway.edge.edge import Edge
from gateway.edge.safety.screening import screen
from gateway.edge.schema.body import read_as, warn
from gateway.edge.schema.completions import CompletionRequest, translate_completions
from gateway.edge.schema.completions_reply import CompletionsReply
from gateway.edge.tracing import trace_headers
from wire.threads import in_thread

_MANY = 2_048  # ids or characters in a list


async def create_completion(request: Request) -> GenerationResponse:
    """Continue texts, as a stream or whole."""
    edge: Edge = request.app.state.edge
    settings = edge.settings
    body = await read_as(request, CompletionRequest, settings.max_body_bytes)
    model = edge.served.model(body.model)
    max_prompts = min(settings.max_prompts, settings.max_inflight)
    translate = partial(
        translate_completions, body, model.card, max_choices=settings.max_choices, max_prompts=max_prompts
    )
    # A list may hold millions of ids, which take longer to look at than others shall wait.
    is_long = _is_long(body.prompt)
    wanted = await in_thread(translate) if is_long else translate()
    warn(request, *await edge.grammars.admit(wanted[0]))  # the same for all
    place = "prompt[{}]" if len(wanted) > 1 else "prompt"
    wanted = [await screen(one, edge.safety, place.format(at)) for at, one in enumerate(wanted)]
    stream = bool(body.stream)
    parent = trace_headers(request.headers)
    answer = partial(CompletionsReply, body, wanted, model.vocabulary)
    reply = await in_thread(answer) if is_long and body.echo else answer()
    return GenerationResponse(
        lambda: edge.generate_all(wanted, reply, operation="text_completion", stream=stream, parent=parent),
        stream=stream,
        settings=settings,
    )


def _is_long(prompt: str | list[Any]) -> bool:
    """Tell whether a prompt takes longer to look at than a thread to wake."""
    if isinstance(prompt, str):
        return False
    return len(prompt) > _MANY or sum(len(one) for one in prompt if not isinstance(one, int)) > _MANY

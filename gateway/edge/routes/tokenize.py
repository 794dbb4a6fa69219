"""POST /tokenize and /detokenize, GET /tokenizer_info: vLLM's routes, for clients that count or make ids themselves."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from gateway.edge.schema.body import read_as, translated
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.tokenize import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenized,
    token_texts,
    translate_tokenize,
)
from gateway.edge.served import ServedModel
from wire.threads import in_thread


async def tokenize(request: Request) -> Response:
    """Return the token ids of a text or a conversation."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, TokenizeRequest, edge.seeing.max_body_bytes)
    model = _model(edge, body.model)
    pictures = edge.seeing.pictures(model.card.name)
    asked = await translated(request, lambda: translate_tokenize(body, model.card, pictures))
    with edge.admission.slot():
        ids = await edge.tokenizer.token_ids(
            asked,
            add_special_tokens=body.add_special_tokens is not False,
            add_generation_prompt=body.add_generation_prompt is not False,
        )
    return await in_thread(_shown, ids, model, bool(body.return_token_strs))


def _shown(ids: list[int], model: ServedModel, with_texts: bool) -> Response:
    """Encoding so many numbers takes its time, so this runs beside the event loop."""
    texts = token_texts(ids, model.vocabulary) if with_texts else None
    limit = model.card.max_model_len
    return json_response({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": texts})


async def detokenize(request: Request) -> Response:
    """Return the text of token ids."""
    edge: Edge = request.app.state.edge
    body = await read_as(request, DetokenizeRequest, edge.settings.max_body_bytes)
    model = _model(edge, body.model)
    text = await in_thread(detokenized, body.tokens, model.card, model.vocabulary)
    return json_response({"prompt": text})


async def tokenizer_info(request: Request) -> Response:
    """Return what a client must know to write prompts itself: the model's template, and its tokens by name."""
    edge: Edge = request.app.state.edge
    card = _model(edge, request.query_params.get("model")).card
    return json_response(
        {
            "bos_token": card.bos_token,
            "eos_token": card.eos_token,
            "chat_template": card.chat_template,
            "model_max_length": card.max_model_len,
        }
    )


def _model(edge: Edge, name: str | None) -> ServedModel:
    if name is None and len(edge.settings.models) > 1:
        raise fail("model", "is missing, and several models are served.")
    return edge.served.model(name if name is not None else edge.settings.models[0])

"""/v1/models: what is served here. OpenAI and Anthropic both have this path; Anthropic's clients say so in a header."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.errors import speaks_anthropic
from gateway.edge.jsontext import json_response
from wire.model_card import ModelCard


async def list_models(request: Request) -> Response:
    """Return all models, those that chat first: clients without a choice take the first."""
    edge: Edge = request.app.state.edge
    shape, is_anthropic = _shape(request)
    models = [shape(edge, card) for card in sorted(edge.served.cards.values(), key=lambda card: card.kind != "chat")]
    if is_anthropic:
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
        return json_response({"data": models, "has_more": False, **ends})
    return json_response({"object": "list", "data": models})


async def get_model(request: Request) -> Response:
    """Return one model. Raises ModelNotFoundError."""
    edge: Edge = request.app.state.edge
    card = edge.served.card(request.path_params["id"])
    return json_response(_shape(request)[0](edge, card))


def _room(edge: Edge, card: ModelCard) -> int:
    """Return how long prompt and answer can be here: the model's context, or less if no replica holds so much."""
    base = card.adapter_of or card.name
    ready = [status for status in edge.replicas.alive() if status.model == base and status.state == "ready"]
    rooms = (min(status.max_model_len, status.num_blocks * status.block_size + 1) for status in ready)
    return min(card.max_model_len, max(rooms, default=card.max_model_len))


def _shape(request: Request) -> tuple[Callable[[Edge, ModelCard], dict[str, Any]], bool]:
    is_anthropic = speaks_anthropic(request.scope)
    return (_anthropic_model if is_anthropic else _model), is_anthropic


def modalities_of(card: ModelCard) -> list[str]:
    """Return what a model reads."""
    return ["text", "image"] if card.pictures is not None else ["text"]


def _anthropic_model(edge: Edge, card: ModelCard) -> dict[str, Any]:
    room = _room(edge, card)
    return {
        "type": "model",
        "id": card.name,
        "display_name": card.name,
        "created_at": datetime.fromtimestamp(card.created, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": room,
        "max_tokens": room,
    }


def _model(edge: Edge, card: ModelCard) -> dict[str, Any]:
    room = _room(edge, card)
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "headrace",
        "max_model_len": room,  # vLLM's name; most clients look for the other one
        "context_length": room,
        "kind": card.kind,
        "architecture": {"input_modalities": modalities_of(card), "output_modalities": ["text"]},  # OpenRouter's name
        "image_limits": edge.seeing.limits(card),
        "root": card.adapter_of or card.name,
        "parent": card.adapter_of or None,
    }

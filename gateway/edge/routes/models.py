"""/v1/models: what is served here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from wire.model_card import ModelCard


async def list_models(request: Request) -> Response:
    """Return all models."""
    edge: Edge = request.app.state.edge
    return json_response({"object": "list", "data": [_model(served.card) for served in edge.models.values()]})


async def get_model(request: Request) -> Response:
    """Return one model. Raises ModelNotFoundError."""
    edge: Edge = request.app.state.edge
    return json_response(_model(edge.model(request.path_params["id"]).card))


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "headrace",
        "max_model_len": card.max_model_len,
    }

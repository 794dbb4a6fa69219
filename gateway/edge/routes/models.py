"""/v1/models: what is served here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.edge import Edge
from gateway.edge.jsontext import json_response
from wire.model_card import ModelCard


async def list_models(request: Request) -> Response:
    """Return all models, those that chat first: clients without a choice take the first."""
    edge: Edge = request.app.state.edge
    return json_response(
        {
            "object": "list",
            "data": [_model(card) for card in sorted(edge.served.cards.values(), key=lambda card: card.embeds)],
        }
    )


async def get_model(request: Request) -> Response:
    """Return one model. Raises ModelNotFoundError."""
    edge: Edge = request.app.state.edge
    return json_response(_model(edge.served.card(request.path_params["id"])))


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "headrace",
        "max_model_len": card.max_model_len,
        "kind": "embedding" if card.embeds else "chat",
    }

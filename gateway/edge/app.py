"""The ASGI application: routes, and the layers round them. All layers are pure ASGI, so nothing buffers a stream."""

from __future__ import annotations

from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.edge.edge import Edge
from gateway.edge.errors import BODY_SEND, ErrorBoundary, error_body, handle_error
from gateway.edge.guard import Guard
from gateway.edge.jsontext import json_response
from gateway.edge.paths import hint, plain
from gateway.edge.routes import (
    adapters,
    chat,
    completions,
    control,
    conversation_items,
    conversations,
    docs,
    embeddings,
    health,
    input_tokens,
    messages,
    models,
    moderations,
    rerank,
    responses,
    tokenize,
)
from gateway.edge.routes.page import Page
from gateway.edge.tenancy.gate import RATE_HEADERS, KeyGate
from wire.errors import HeadraceError, InvalidRequestError, NotFoundError


def build_app(edge: Edge) -> ASGIApp:
    """Return the application of an edge."""
    settings = edge.settings
    layers = [Middleware(Guard, settings=settings)]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],  # OpenAI's and Anthropic's clients send a dozen of their own
                expose_headers=[
                    *("x-request-id", "request-id", "x-headrace-warning", "server-timing", "retry-after"),
                    *RATE_HEADERS,
                ],
            )
        )
    layers.append(Middleware(ErrorBoundary))
    if edge.accounts.keyring is not None:
        layers.append(Middleware(KeyGate, keyring=edge.accounts.keyring, limits=edge.accounts.limits))
    app = Starlette(
        routes=_routes(),
        middleware=layers,
        exception_handlers={HeadraceError: handle_error, HTTPException: _handle_http_error},
    )
    app.state.edge = edge
    # Behind the routes and not one of them: it would take a wrong method on a route for a file that is not there.
    app.router.default = Page(str(files("gateway.webchat")))
    app.router.redirect_slashes = False

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        scope[BODY_SEND] = send
        if scope["type"] == "http":
            scope["path"] = plain(scope["path"])
        await app(scope, receive, send)

    return outermost


def _routes() -> list[Route]:
    return [
        Route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"]),
        Route("/v1/completions", completions.create_completion, methods=["POST"]),
        Route("/v1/responses", responses.create_response, methods=["POST"]),
        Route("/v1/responses/input_tokens", input_tokens.count_input_tokens, methods=["POST"]),
        Route("/v1/responses/compact", responses.compact, methods=["POST"], include_in_schema=False),
        Route("/v1/responses/{id}", responses.get_response, methods=["GET"]),
        Route("/v1/responses/{id}", responses.delete_response, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", responses.cancel_response, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", responses.list_input_items, methods=["GET"]),
        Route("/v1/requests/{id}/control", control.control_request, methods=["POST"]),
        Route("/v1/conversations", conversations.create_conversation, methods=["POST"]),
        Route("/v1/conversations", conversations.list_conversations, methods=["GET"]),
        Route("/v1/conversations/{id}", conversations.get_conversation, methods=["GET"]),
        Route("/v1/conversations/{id}", conversations.update_conversation, methods=["POST"]),
        Route("/v1/conversations/{id}", conversations.delete_conversation, methods=["DELETE"]),
        Route("/v1/conversations/{id}/items", conversation_items.list_items, methods=["GET"]),
        Route("/v1/conversations/{id}/items", conversation_items.create_items, methods=["POST"]),
        Route("/v1/conversations/{id}/items/{item_id}", conversation_items.get_item, methods=["GET"]),
        Route("/v1/conversations/{id}/items/{item_id}", conversation_items.delete_item, methods=["DELETE"]),
        Route("/v1/embeddings", embeddings.create_embeddings, methods=["POST"]),
        Route("/v1/rerank", rerank.rerank, methods=["POST"]),
        Route("/rerank", rerank.rerank, methods=["POST"], include_in_schema=False),  # these two: where clients of
        Route("/v2/rerank", rerank.rerank, methods=["POST"], include_in_schema=False),  # Jina and Cohere look
        Route("/score", rerank.score, methods=["POST"]),
        Route("/v1/score", rerank.score, methods=["POST"], include_in_schema=False),
        Route("/v1/messages", messages.create_message, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
        Route(
            "/v1/messages/batches{rest:path}",
            messages.batches,
            methods=["GET", "POST", "DELETE"],
            include_in_schema=False,
        ),
        Route("/v1/moderations", moderations.create_moderation, methods=["POST"]),
        Route("/tokenize", tokenize.tokenize, methods=["POST"]),
        Route("/detokenize", tokenize.detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenize.tokenizer_info, methods=["GET"]),
        Route("/v1/models", models.list_models, methods=["GET"]),
        Route("/v1/models/{id:path}", models.get_model, methods=["GET"]),
        Route("/v1/load_lora_adapter", adapters.load_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", adapters.unload_adapter, methods=["POST"]),
        Route("/openapi.json", docs.openapi, methods=["GET"]),
        Route("/docs", docs.docs, methods=["GET"], include_in_schema=False),
        Route("/health/live", health.live, methods=["GET"]),
        Route("/health/ready", health.ready, methods=["GET"]),
        Route("/health", health.ready, methods=["GET"], include_in_schema=False),  # where other servers have it
        Route("/metrics", health.metrics, methods=["GET"]),
    ]


def _handle_http_error(request: Request, error: Exception) -> Response:
    """Give unknown paths and wrong methods the client's error shape."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = f"{request.method} {path[:200]}: {error.detail}."
    if error.status_code == 404:
        message += hint(request.scope, request.app.routes)
    kind = NotFoundError if error.status_code == 404 else InvalidRequestError
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return json_response(error_body(kind(message), request.scope), error.status_code, headers)


def _allowed(request: Request) -> str:
    """Return the methods of a path, which may be several routes; each of them knows only its own.

    A path that has a route by name is nobody's id, though it looks like one (`/v1/responses/input_tokens`).
    """
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    routes = [route for route in routes if route.path == request.url.path] or routes
    return ", ".join(sorted({method for route in routes for method in route.methods}))

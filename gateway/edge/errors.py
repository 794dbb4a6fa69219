"""Errors as OpenAI clients know them: `{"error": {message, type, param, code}}`, the right status, no stack trace.

Anthropic's clients get Anthropic's shape: `{"type": "error", "error": {type, message}}`.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.edge.compressed import ACCEPTED
from gateway.edge.jsontext import to_json
from wire.errors import ContextLengthExceededError, HeadraceError, InternalError, UnsupportedEncodingError, by_code
from wire.messages import Failure, HistoryReply, TokenizeReply

logger = logging.getLogger(__name__)

_LINGER_BYTES = 32 * 1024 * 1024
_LINGER_S = 1.0
_RETRY_AFTER_S = 1.0
_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_HEADER = b"anthropic-version"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Clients cut their conversation, or ask for a summary, when they read these words, whatever the code says.
_TOO_LONG = "prompt is too long: this model's maximum context length is exceeded; "
BODY_SEND = "headrace.body_send"
"""Where the scope holds the server's own `send`: once headers are out, no layer has a word in the body."""
INTERNAL = "The server failed on this request; the log of the edge says why."


def error_object(error: HeadraceError) -> dict[str, Any]:
    """Return OpenAI's error object."""
    return {"error": {"message": _message(error), "type": error.type, "param": error.param, "code": error.code}}


def anthropic_error(error: HeadraceError) -> dict[str, Any]:
    """Return Anthropic's error object."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    details = {"details": _UNTHREADED} if error.param == "thread" else {}
    return {"type": "error", "error": {"type": kind, "message": _message(error), **details}}


def _message(error: HeadraceError) -> str:
    return _TOO_LONG + error.message if isinstance(error, ContextLengthExceededError) else error.message


# Anthropic's client sends all messages instead when it reads this; else it would go on with what it sent last.
_UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def speaks_anthropic(scope: Scope) -> bool:
    """Tell whether a request is of Anthropic's dialect: by its path, or where both have the path, by its header."""
    path: str = scope["path"]
    return path.startswith(_ANTHROPIC_PATH) or any(name == _ANTHROPIC_HEADER for name, _ in scope["headers"])


def error_body(error: HeadraceError, scope: Scope) -> dict[str, Any]:
    """Return the error object in the dialect of a request."""
    return anthropic_error(error) if speaks_anthropic(scope) else error_object(error)


def error_response(error: HeadraceError, scope: Scope) -> Response:
    """Return the HTTP answer to a request, for an error that is known before the first byte was sent."""
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))} if error.retry_after_s is not None else {}
    if isinstance(error, UnsupportedEncodingError):
        headers["Accept-Encoding"] = ACCEPTED
    kind = _LingeringResponse if error.status == 413 else Response
    return kind(to_json(error_body(error, scope)), error.status, headers, "application/json")


class _LingeringResponse(Response):
    """An answer sent before the request was read: what still comes is thrown away for a moment, then we close.

    Closing at once would reset the connection, and the client would lose the answer that lies in its buffer.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then linger."""
        del scope
        self.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left = _LINGER_BYTES
        with anyio.move_on_after(_LINGER_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def from_failure(failure: Failure) -> HeadraceError:
    """Return the error that a desk reported for a request."""
    kind = by_code(failure.code)
    return kind(failure.message, param=failure.param, retry_after_s=_RETRY_AFTER_S if kind.retryable else None)


def from_reply(reply: HistoryReply | TokenizeReply) -> HeadraceError:
    """Return the error that a desk answered a call with."""
    return by_code(reply.code or "")(reply.message, param=reply.param)


def handle_error(request: Request, error: Exception) -> Response:
    """Starlette's hook for errors raised by a route."""
    assert isinstance(error, HeadraceError)
    return error_response(error, request.scope)


class ErrorBoundary:
    """An ASGI layer within those that write headers: a fault of ours is logged and answered with 500, in our shape.

    Starlette's own answer to one, outside of all layers, would be a line of text without our headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:
            logger.exception("unhandled fault in %s", scope.get("path"))
            if started:
                raise  # the server closes the connection: the client sees a cut stream, not a false end
            await error_response(InternalError(INTERNAL), scope)(scope, receive, send)

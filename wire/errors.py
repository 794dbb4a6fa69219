"""Every error a client or a desk may meet, with a stable code, HTTP status and whether a retry can help.

HeadraceError
├── InvalidRequestError            400  the request can never work; `param` names the field
│   ├── ContextLengthExceededError 400
│   ├── TemplateError              400  the chat template refuses these messages
│   ├── ContentFilterError         400  a safety rule blocks the prompt
│   ├── AuthenticationError        401  the API key is missing or unknown
│   ├── ForbiddenError             403  the caller's host, origin or key may not do this
│   ├── ModelNotFoundError         404
│   ├── NotFoundError              404  conversation or response unknown
│   ├── ConflictError              409  a stale write
│   ├── BodyTooLargeError          413
│   └── UnsupportedEncodingError   415  the body is compressed in a way that is not read
├── OverloadedError                429  admission is full, or a bounded stream is
│   └── RateLimitError             429  the caller's key has used up what it may
├── RequestCancelledError          499  the client left or cancelled
│   └── UnreadError                499  nobody reads what is made in the background
├── UnavailableError               503  no replica serves this model now
├── DeadlineExceededError          504
└── InternalError                  500  our fault; the message never quotes the request
    └── DeadLetterError            500  a desk failed three times on this job, or five replicas died of it
"""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Base of all errors that may reach a client.

    `param` names the request field at fault, or is None.
    """

    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequestError(HeadraceError):
    """The request can never work as it is."""

    code = "invalid_request"
    type = "invalid_request_error"
    status = 400


class ContextLengthExceededError(InvalidRequestError):
    """Prompt and wanted output do not fit the model's context."""

    code = "context_length_exceeded"


class TemplateError(InvalidRequestError):
    """The model's chat template refuses these messages."""

    code = "template_refused"


class ContentFilterError(InvalidRequestError):
    """A safety rule blocks the prompt; the message never quotes it."""

    code = "content_filter"


class AuthenticationError(InvalidRequestError):
    """The API key is missing or unknown."""

    code = "invalid_api_key"
    status = 401


class ForbiddenError(InvalidRequestError):
    """The caller's Host or Origin may not call this server, or its key may not do this."""

    code = "forbidden"
    status = 403


class ModelNotFoundError(InvalidRequestError):
    """No model of this name is served here."""

    code = "model_not_found"
    status = 404


class NotFoundError(InvalidRequestError):
    """A stored object (response, conversation, item) is unknown."""

    code = "not_found"
    status = 404


class ConflictError(InvalidRequestError):
    """Somebody else changed the object first."""

    code = "conflict"
    status = 409


class BodyTooLargeError(InvalidRequestError):
    """The request body passes the byte limit."""

    code = "body_too_large"
    status = 413


class UnsupportedEncodingError(InvalidRequestError):
    """The request body is compressed in a way that is not read here."""

    code = "unsupported_encoding"
    status = 415


class OverloadedError(HeadraceError):
    """Admission or a bounded stream is full; try again later."""

    code = "overloaded"
    type = "rate_limit_error"
    status = 429
    retryable = True


class RateLimitError(OverloadedError):
    """The caller's key has used up its requests or tokens for now."""

    code = "rate_limit_exceeded"


class RequestCancelledError(HeadraceError):
    """The client went away or cancelled the request."""

    code = "request_cancelled"
    status = 499


class UnreadError(RequestCancelledError):
    """Nobody has read what is made in the background for as long as its client said."""

    code = "unread"


class UnavailableError(HeadraceError):
    """No replica serves this model at the moment."""

    code = "unavailable"
    status = 503
    retryable = True


class DeadlineExceededError(HeadraceError):
    """The request's deadline passed before it was done."""

    code = "deadline_exceeded"
    status = 504
    retryable = True


class InternalError(HeadraceError):
    """Our own fault; the message never quotes the request."""

    code = "internal_error"
    retryable = True


class DeadLetterError(InternalError):
    """The job was given up: a desk failed on it three times, or replicas in a row died of it."""

    code = "dead_letter"


def _walk(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _walk(child))]


def by_code(code: str) -> type[HeadraceError]:
    """Return the error class of a stable code; an unknown code is an InternalError."""
    return next((cls for cls in _walk(HeadraceError) if cls.code == code and cls is not HeadraceError), InternalError)


class StartError(Exception):
    """Why a process cannot start or go on, in one sentence for whoever runs it. Never reaches a client."""

"""The error, if any, that the last chunk of a request means for its client."""

from __future__ import annotations

from wire.errors import HeadraceError, InternalError, InvalidRequestError, RequestCancelledError
from wire.messages import Request, TokenChunk

_STUCK = (
    "The rules of the request leave no token to say: its grammar, allowed_token_ids, bad_words and min_tokens do not "
    "go together here."
)


def fault_of(chunk: TokenChunk, request: Request) -> HeadraceError | None:
    """Return the error that a last chunk ends its request with, if it is one."""
    if chunk.finish_reason == "cancelled":
        return RequestCancelledError("The replica reports: cancelled.")
    if chunk.finish_reason != "error":
        return None
    if not chunk.stuck:
        return InternalError("The replica reports: error (numbers were not finite, or a rule was broken).")
    grammar = request.sampling.grammar
    return InvalidRequestError(_STUCK, param=(grammar.field or "tools") if grammar is not None else None)

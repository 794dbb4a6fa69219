"""The response object: what it repeats of the request, what is added while it grows, and its errors."""

from __future__ import annotations

from typing import Any

from wire.errors import ContentFilterError, ContextLengthExceededError, HeadraceError, OverloadedError, TemplateError

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reason -> why a response is incomplete."""

RUNNING = frozenset({"queued", "in_progress"})
"""States of a response that is not over."""

_ERROR_CODES: dict[type[HeadraceError], str] = {
    OverloadedError: "rate_limit_exceeded",
    ContextLengthExceededError: "invalid_prompt",
    TemplateError: "invalid_prompt",
    ContentFilterError: "invalid_prompt",
}


def error_of(error: HeadraceError) -> dict[str, Any]:
    """Return the error of a response: its codes are OpenAI's few, so ours stands beside it."""
    code = _ERROR_CODES.get(type(error), "server_error")
    return {"code": code, "message": error.message, "headrace": {"code": error.code}}


def item_id(prefix: str, response_id: str, number: int = 0) -> str:
    """Return the id of an output item. The first of each kind share a stem, as the items of one stored message do."""
    return f"{prefix}_{response_id.partition('_')[2]}{f'{number:02x}' if number else ''}"


def call_item_id(response_id: str, number: int, *, is_custom: bool = False) -> str:
    """Return the id of a call's item: the call's place among the calls stands behind the stem."""
    return f"{item_id('ctc' if is_custom else 'fc', response_id)}{number:02x}"

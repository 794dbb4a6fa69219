"""OpenAI's `prediction`: what the client thinks the answer will be like. It makes an answer faster, never different."""

from __future__ import annotations

from typing import Any

from gateway.edge.schema.sampling import fail

_SHAPE = 'must be {"type": "content", "content": a string or an array of text parts}.'


def translate_prediction(value: dict[str, Any] | None) -> str:
    """Return the predicted text, "" for none. Raises InvalidRequestError."""
    if value is None:
        return ""
    content = value.get("content")
    if value.get("type") != "content" or set(value) - {"type", "content"}:
        raise fail("prediction", _SHAPE)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts:
        raise fail("prediction", _SHAPE)
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise fail("prediction", _SHAPE)
    return "".join(text for text in texts if isinstance(text, str))

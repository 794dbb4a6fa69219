"""JSON that is safe on one SSE line for every reader: JSON itself escapes CR and LF, we the Unicode separators.

Some readers split lines at U+2028, U+2029 and U+0085 although the event-stream rules do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()

_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def to_json(value: Any) -> bytes:
    """Encode a value; these bytes occur only inside JSON strings, so replacing them is safe."""
    raw = _encoder.encode(value)
    for found, escaped in _SEPARATORS:
        if found in raw:
            raw = raw.replace(found, escaped)
    return raw


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an HTTP answer with a JSON body."""
    return Response(to_json(value), status, headers, "application/json")

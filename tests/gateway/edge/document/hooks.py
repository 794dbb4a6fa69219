"""What a document cannot say: which models run on the server that is tried."""

from __future__ import annotations

from typing import Any

import schemathesis

from tests.ring import MODEL
from tests.tiny_bert import MODEL as EMBEDDER


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Ask for a model that is served, wherever a name is given."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    path = context.operation.path if context.operation is not None else ""
    return body | {"model": EMBEDDER if path == "/v1/embeddings" else MODEL}

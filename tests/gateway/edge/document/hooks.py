"""What a document cannot say: which models run on the server that is tried."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

MODEL, EMBEDDER = os.environ["HEADRACE_FUZZ_MODELS"].split(",")


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Ask for a model that is served, wherever a name is given."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    path = context.operation.path if context.operation is not None else ""
    encodes = path in ("/v1/embeddings", "/v1/rerank", "/score")
    return body | {"model": EMBEDDER if encodes else MODEL}

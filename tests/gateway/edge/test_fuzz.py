"""Bodies made of the OpenAPI document's schemas, right and wrong: never a 5xx, every answer as documented, blocks back.

`make fuzz` tries 2,000 bodies a route; a plain test run a few.
"""

from __future__ import annotations

import json
import os
from typing import Any

import anyio
import anyio.to_thread
import httpx
import hypothesis
import pytest
from hypothesis import strategies as st

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.openapi.test_document import DOCUMENT, answer_schema, validator
from tests.gateway.edge.sse import read
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "15"))
USER = [{"role": "user", "content": "hi"}]
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": USER},
    "/v1/completions": {"model": "tiny", "prompt": "ab"},
    "/v1/responses": {"model": "tiny", "input": "hi", "store": False},
    "/v1/responses/input_tokens": {"model": "tiny", "input": "hi"},
    "/v1/messages": {"model": "tiny", "messages": USER, "max_tokens": 20},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": USER},
    "/tokenize": {"model": "tiny", "prompt": "ab"},
    "/detokenize": {"model": "tiny", "tokens": [1, 2]},
    "/v1/conversations": {},
    "/v1/moderations": {"input": "hi"},
    "/v1/embeddings": {"model": "tiny", "input": "hi"},
    "/v1/rerank": {"model": "tiny", "query": "hi", "documents": ["hi", {"text": "ho"}]},
    "/score": {"model": "tiny", "text_1": "hi", "text_2": ["hi", "ho"]},
}
WORDS = ("user", "assistant", "system", "text", "tool_result", "function", "auto", "none", "json_object", "enabled")
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def bodies(path: str) -> st.SearchStrategy[Any]:
    """Return bodies of a route: a valid one with a few fields of the schema's kind or of any kind; or anything."""
    name = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    properties = DOCUMENT["components"]["schemas"][name.rpartition("/")[2]]["properties"]

    def some(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
        names = st.lists(st.sampled_from(sorted(values)), max_size=4, unique=True)
        return names.flatmap(lambda chosen: st.fixed_dictionaries({one: values[one] for one in chosen}))

    right = some({field: made_of(schema) for field, schema in properties.items()})
    wrong = some(dict.fromkeys(properties, ANY_JSON))
    fields = st.one_of(right, right, wrong)
    return st.one_of(fields.map(lambda more: {**VALID[path], **more}), fields, ANY_JSON)


def made_of(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Return values of a schema, as far as msgspec writes schemas; deep ones are made of any JSON."""
    if depth > 6 or not schema.keys() & {"$ref", "anyOf", "enum", "type"}:
        return ANY_JSON
    if "$ref" in schema:
        return made_of(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth + 1)
    if "anyOf" in schema:
        limits = {name: schema[name] for name in ("minimum", "maximum") if name in schema}
        return st.one_of([made_of(limits | one, depth + 1) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "array":
        return st.lists(made_of(schema.get("items") or {}, depth + 1), max_size=3)
    if schema.get("type") == "object":
        return object_of(schema, depth)
    low, high = schema.get("minimum"), schema.get("maximum")
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(-3, 40) | st.integers(low, high),
        "number": st.floats(low, high, allow_nan=False, allow_infinity=False),
        "string": st.text(max_size=20) | st.sampled_from(WORDS),
    }
    return simple[schema["type"]]


def object_of(schema: dict[str, Any], depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with all required properties and some of the others."""
    properties, required = schema.get("properties"), schema.get("required", ())
    if not properties:
        more = schema.get("additionalProperties")
        values = made_of(more, depth + 1) if isinstance(more, dict) else ANY_JSON
        return st.dictionaries(st.text(max_size=8), values, max_size=3)
    inner = {name: made_of(one, depth + 1) for name, one in properties.items()}
    return st.fixed_dictionaries(
        {name: inner[name] for name in required},
        optional={name: one for name, one in inner.items() if name not in required},
    )


def check(http: httpx.Client, path: str, body: Any) -> None:
    """Send a body and hold the answer to the document."""
    response = http.post(path, content=json.dumps(body))  # NaN and Infinity as Python writes them
    assert response.status_code < 500, (response.status_code, response.text, body)
    if response.headers["content-type"].startswith("text/event-stream"):
        for event in read(response.text).events:
            assert event.data == "[DONE]" or isinstance(event.json(), dict)
        return
    validator(answer_schema(path, "post", response.status_code)).validate(response.json())


def fuzz(http: httpx.Client, path: str) -> None:
    """Try many bodies on a route."""

    @hypothesis.settings(
        max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate]
    )
    @hypothesis.given(bodies(path))
    def try_one(body: Any) -> None:
        check(http, path, body)

    try_one()


async def test_no_body_breaks_the_server(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    with httpx.Client(base_url=ring.url, timeout=60.0, trust_env=False) as http:
        for path in VALID:
            await anyio.to_thread.run_sync(fuzz, http, path)
    await still_serves(ring)  # and nothing is left running

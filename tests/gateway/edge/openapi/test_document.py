"""The OpenAPI document: all routes are in it, its schemas are schemas, answers are what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.edge.app import _routes
from gateway.edge.openapi.document import document
from gateway.edge.openapi.operations import OPERATIONS
from tests.ring import Ring
from tests.script import say, tag, think

pytestmark = pytest.mark.anyio

DOCUMENT = document(_routes())


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """Return what holds values to a schema of the document."""
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def answer_schema(path: str, method: str, status: int) -> dict[str, Any]:
    """Return the schema of an answer."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    found: dict[str, Any] = responses[str(status)]["content"]["application/json"]["schema"]
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_is_in_the_document_and_every_entry_is_a_route() -> None:
    listed = {operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()}
    assert set(OPERATIONS) <= listed
    served = {route.name for route in _routes() if getattr(route, "include_in_schema", False) and route.name}
    assert listed == served - {""}
    assert DOCUMENT["openapi"] == "3.1.0"


def test_what_takes_a_body_says_which() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if method == "post" and operation["operationId"] != "cancel_response":
                assert "requestBody" in operation or operation["operationId"] not in OPERATIONS, path


def test_its_schemas_are_schemas_and_nothing_is_referred_to_that_is_not_there() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
        assert schema.get("description"), schema
    assert {reference.rpartition("/")[2] for reference in references(DOCUMENT)} <= set(schemas)


ASKS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1, "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "service_tier": "flex"}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/completions", {"prompt": ["ab", "c"], "echo": True, "logprobs": 1, "prompt_logprobs": 1}),
    ("/v1/completions", {"prompt": 3}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    ("/v1/responses/input_tokens", {}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/v1/conversations", {"metadata": {"title": "t"}}),
]


async def test_answers_are_what_the_document_says(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello", " world"))
    for path, body in ASKS:
        response = await ring.http.post(path, json={"model": "tiny", **body})
        validator(answer_schema(path, "post", response.status_code)).validate(response.json())
    for path, url in (("/v1/models", "/v1/models"), ("/v1/models/{id}", "/v1/models/tiny")):
        validator(answer_schema(path, "get", 200)).validate((await ring.http.get(url)).json())
    validator(answer_schema("/v1/models/{id}", "get", 404)).validate((await ring.http.get("/v1/models/x")).json())


async def test_the_document_and_its_page_are_served_and_ask_for_nothing_from_elsewhere(ring: Ring) -> None:
    assert (await ring.http.get("/openapi.json")).json() == DOCUMENT
    page = await ring.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text and "https://" not in page.text and "<script" not in page.text
    for path in DOCUMENT["paths"]:
        assert f"<code>{path}</code>" in page.text


async def test_a_wrong_method_is_405_and_names_the_right_ones_whatever_routes_share_the_path(ring: Ring) -> None:
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("PATCH", "/v1/conversations/conv_1", "DELETE, GET, HEAD, POST"),
        ("GET", "/v1/messages", "POST"),
        ("OPTIONS", "/v1/responses/input_tokens", "POST"),
    ):
        answer = await ring.http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for method in ("GET", "POST", "DELETE"):
        assert (await ring.http.request(method, "/v1/nothing")).status_code == 404
    assert (await ring.http.get("/")).headers["content-type"].startswith("text/html")


async def test_queries_are_in_the_document_and_errors_have_their_own_lines() -> None:
    listed = DOCUMENT["paths"]["/v1/conversations/{id}/items"]["get"]
    assert [one["name"] for one in listed["parameters"]] == ["id", "limit", "after", "order", "include"]
    assert {"400", "401", "404", "429"} <= listed["responses"].keys()
    assert "202" in DOCUMENT["paths"]["/v1/requests/{id}/control"]["post"]["responses"]
    assert DOCUMENT["paths"]["/v1/conversations"]["post"]["requestBody"]["required"] is False

"""Bodies that are legal JSON and yet odd: nulls, numbers of any size, other dialects' names. Never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.openapi.test_document import DOCUMENT, answer_schema, validator
from tests.gateway.edge.test_fuzz import VALID
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# no model and no rules for these here
PATHS = sorted(set(VALID) - {"/v1/embeddings", "/v1/rerank", "/score", "/v1/moderations"})
ODD: list[Any] = ["", [], {}, 0, -1, 2**63, 2**64, 10**30, 1e300, -(10**30), True, "x", [None], {"": None}, [10**30]]


def fields_of(path: str) -> list[str]:
    """Return the fields of a body that need not be given."""
    name = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return [field for field in DOCUMENT["components"]["schemas"][name.rpartition("/")[2]]["properties"]
            if field not in VALID[path]]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_null_is_as_good_as_absent_in_every_field(ring: Ring, path: str) -> None:
    ring.replica.play(*say("one "))
    for body in (dict.fromkeys(fields_of(path)), *({field: None} for field in fields_of(path)[::5])):
        response = await ring.http.post(path, json={**VALID[path], **body})
        assert response.status_code == 200, (body, response.text)


@pytest.mark.parametrize("path", PATHS)
async def test_odd_values_of_any_field_are_served_or_refused(ring: Ring, path: str) -> None:
    ring.replica.play(*say("one "))
    for number, field in enumerate(fields_of(path)):
        for value in ODD[number % 2 :: 2]:
            response = await ring.http.post(path, content=json.dumps({**VALID[path], field: value}))
            assert response.status_code < 500, (field, value, response.text)
            if response.status_code != 200:
                validator(answer_schema(path, "post", response.status_code)).validate(response.json())
    await still_serves(ring)


@pytest.mark.parametrize("value", [2**31, 2**63, 2**64, 10**30])
async def test_a_token_limit_beyond_all_numbers_is_no_limit(ring: Ring, value: int) -> None:
    ring.replica.play(*say("one ", "two "))
    asks = [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), ("/v1/completions", "max_tokens")]
    asks += [(RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")]
    for path, field in asks:
        for stream in (False, True):
            response = await ring.http.post(path, json={**VALID[path], field: value, "stream": stream})
            assert (response.status_code, "two " in response.text) == (200, True), response.text
    await still_serves(ring)


HUGE = 2**64
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": HUGE}}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOLD: list[tuple[str, str, dict[str, Any]]] = [
    (CHAT, "tools[0]", {"tools": [{"type": "function", "function": FUNCTION}]}),
    (CHAT, "chat_template_kwargs", {"chat_template_kwargs": {"x": [HUGE]}}),
    (CHAT, "guided_json", {"guided_json": SCHEMA}),
    (CHAT, "seed", {"seed": HUGE}),
    (RESPONSES, "tools[0]", {"tools": [{"type": "function", **FUNCTION}]}),
    (RESPONSES, "tool_choice", {"tools": [{"type": "function", "name": "f"}],
                                "tool_choice": {"type": "function", "name": "f", "x": -HUGE}}),
    (RESPONSES, "text.format", {"text": {"format": {"type": "text", "x": HUGE}}}),
    (RESPONSES, "text.format", {"text": {"format": {"type": "text", "x": json.loads("[" * 70 + "]" * 70)}}}),
    (RESPONSES, "text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
    (RESPONSES, "max_tool_calls", {"max_tool_calls": HUGE}),
    *((RESPONSES, name, {name: value}) for name, value in (
        ("max_tokens", 5), ("max_completion_tokens", 5), ("messages", []), ("n", 2), ("logprobs", True),
        ("response_format", {"type": "json_object"}), ("reasoning_effort", "low"), ("thinking_token_budget", 5),
    )),
]  # fmt: skip


async def test_what_cannot_be_done_is_told_by_its_field_and_not_passed_over(ring: Ring) -> None:
    for path, param, fields in TOLD:
        for stream in (False, True):
            response = await ring.http.post(path, content=json.dumps({**VALID[path], **fields, "stream": stream}))
            assert response.status_code == 400, (fields, response.text)
            assert response.json()["error"]["param"] == param, response.text
    assert ring.replica.requests == []
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": HUGE}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]}]
    response = await ring.http.post(MESSAGES, content=json.dumps({**VALID[MESSAGES], "messages": messages}))
    assert response.status_code == 400 and "messages[1].content[0].input" in response.text
    await still_serves(ring)


async def test_a_name_of_another_dialect_with_a_value_that_means_nothing_passes(ring: Ring) -> None:
    fields = {"n": 1, "logprobs": False, "messages": None, "max_tokens": None}
    assert (await ring.http.post(RESPONSES, json={**VALID[RESPONSES], **fields})).status_code == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_fault_of_ours_is_told_in_the_dialects_shape_with_the_requests_id(
    ring: Ring, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("gateway.edge.edge.Edge.generate", None)
        response = await ring.http.post(path, json=VALID[path], headers={"X-Request-Id": "mine"})
    assert response.status_code == 500
    validator(answer_schema(path, "post", 500)).validate(response.json())
    assert "NoneType" not in response.text
    assert response.headers["x-request-id"] == "mine"
    await still_serves(ring)

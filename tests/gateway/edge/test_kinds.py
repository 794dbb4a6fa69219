"""A value of the wrong kind is refused in JSON's words, by its place: what it is, and what would be right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.edge.openapi.operations import OPERATIONS
from gateway.edge.schema.body import decode
from gateway.edge.schema.kinds import first_fault
from tests.gateway.edge.asks import CHAT, refused, still_serves
from tests.ring import Ring
from wire.errors import InvalidRequestError

BODIES = sorted({one.body for one in OPERATIONS.values() if one.body is not None}, key=lambda kind: kind.__name__)
VALUES: tuple[Any, ...] = (
    None,
    True,
    3,
    1.5,
    "x",
    [],
    ["x"],
    [3],
    [[3]],
    [{}],
    {},
    {"a b": "x"},
    {"a": 3},
    {"id": "x"},
)
PYTHON = ("Expected", "`", "str", "int", "float", "bool", "None", "dict", "list", "True", "False", "Object", "$")


def fault_of(cls: type, raw: bytes) -> InvalidRequestError | None:
    try:
        decode(raw, cls)
    except InvalidRequestError as error:
        return error
    return None


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_whatever_stands_in_a_field_is_refused_in_jsons_words_or_not_at_all(cls: type) -> None:
    names: tuple[str, ...] = cls.__struct_encode_fields__  # type: ignore[attr-defined]
    for name in names:
        for value in VALUES:
            body = {name: value}
            error = fault_of(cls, msgspec.json.encode(body))
            found = first_fault(body, cls)
            assert (error is None) == (found is None), body
            if error is None:
                continue
            assert error.param and error.message.startswith(f"{error.param}: "), error.message
            words = error.message.removeprefix(f"{error.param}: ").replace(",", " ").replace(".", " ").split()
            assert not set(words) & set(PYTHON) and "`" not in error.message, error.message
            assert "must be" in error.message
            assert "is missing" in error.message or ", not " in error.message


HEAD = '"model": "m", "messages": [{"role": "user", "content": "x"}]'


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("[]", "The request body must be an object, not an array."),
        ("null", "The request body must be an object, not null."),
        ('{"messages": []}', "model: is missing; it must be a string."),
        ('{"model": 3}', "model: must be a string, not the number 3."),
        ('{"model": "m", "messages": [{}]}', "messages[0].role: is missing; it must be a string."),
        (
            '{"model": "m", "messages": [{"role": "user"}, {"role": "user", "content": [{"type": 3}]}]}',
            "messages[1].content[0].type: must be a string, not the number 3.",
        ),
        (
            '{"model": "m", "messages": [{"role": "user", "content": true}]}',
            "messages[0].content: must be a string or an array of objects, not true.",
        ),
        (f'{{{HEAD}, "temperature": "1"}}', "temperature: must be a number, not a string."),
        (f'{{{HEAD}, "max_tokens": 1.5}}', "max_tokens: must be an integer, not the number 1.5."),
        (f'{{{HEAD}, "stream": "yes"}}', "stream: must be true or false, not a string."),
        (f'{{{HEAD}, "stop": ["a", null]}}', "stop[1]: must be a string, not null."),
        (f'{{{HEAD}, "tools": {{}}}}', "tools: must be an array of objects, not an object."),
        (f'{{{HEAD}, "logit_bias": {{"5": "x"}}}}', "logit_bias.5: must be a number, not a string."),
        (f'{{{HEAD}, "metadata": {{"a.b": 7.0}}}}', 'metadata["a.b"]: must be a string, not the number 7.'),
        (f'{{{HEAD}, "n": {"9" * 5000}}}', "n: must be an integer, not a number out of range."),
        (f'{{{HEAD}, "temperature": 1e999}}', "temperature: must be a number, not a number out of range."),
        (f'{{{HEAD}, "tools": [{{"x": 1e999}}]}}', "The request body holds a number that is out of range."),
    ],
)
def test_a_wrong_value_is_named_by_place_kind_and_what_would_be_right(raw: str, said: str) -> None:
    error = fault_of(next(cls for cls in BODIES if cls.__name__ == "ChatRequest"), raw.encode())
    assert error is not None and error.message == said


def test_a_word_that_is_none_of_a_few_is_shown() -> None:
    cls = next(one for one in BODIES if one.__name__ == "ResponsesRequest")
    error = fault_of(cls, b'{"model": "m", "input": "x", "truncation": "off"}')
    assert error is not None and error.message == 'truncation: must be "auto" or "disabled", not "off".'


WITHIN: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "function": 3}]}, "tools[0].function: must be an object, not the number 3."),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        "tools[0].function.parameters: must be a JSON schema, an object, not an array.",
    ),
    ({"response_format": {}}, "response_format.type: must be 'text', 'json_object' or 'json_schema', not null."),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": "x" * 9, "strict": "yes"}}},
        "response_format.json_schema.strict: must be true or false, not a string.",
    ),
    ({"tool_choice": 3}, "tool_choice: must be 'none', 'auto', 'required' or an object, not the number 3."),
]


@pytest.mark.anyio
async def test_what_has_no_type_of_ours_is_refused_in_the_same_words(ring: Ring) -> None:
    for fields, said in WITHIN:
        error = await refused(ring, said.partition(": ")[0], **fields)
        assert error["message"] == said
    await still_serves(ring)


@pytest.mark.anyio
async def test_anthropics_clients_read_the_same_words(ring: Ring) -> None:
    response = await ring.http.post(
        "/v1/messages", json={"model": "tiny", "max_tokens": 9, "messages": [{"role": "user"}]}
    )
    said = "messages[0].content: is missing; it must be a string or an array of objects."
    assert response.json() == {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
    assert (await ring.http.post(CHAT, json=3)).status_code == 400

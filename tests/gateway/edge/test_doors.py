"""No text comes in unscreened: every route, every text field of its schema, with a forbidden term in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec.inspect as types
import pytest
from tokenizers import Tokenizer

from gateway.edge.app import _routes
from tests.gateway.edge import closed_doors, doors
from tests.gateway.edge.asks import CHAT, RESPONSES
from tests.ring import MakeRing, Ring
from tests.tiny_bert import MODEL as BERT

pytestmark = pytest.mark.anyio

POLICY = """
[[rule]]
id = "word"
kind = "terms"
terms = ["zorgblat", "seas"]
action = "block"

[[rule]]
id = "number"
kind = "pattern"
pattern = '\\d{4}-\\d{4}'
action = "redact"
"""


@pytest.fixture
async def guarded(make_ring: MakeRing, tmp_path: Path, tiny_bert: Path) -> AsyncIterator[Ring]:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    async with make_ring(encoders=[tiny_bert], safety_policy=str(policy)) as running:
        yield running


def fields(schema: type) -> set[str]:
    """Return the paths of all fields that may hold text."""
    return set(_walk(types.type_info(schema), "", ()))


def _walk(kind: types.Type, path: str, above: tuple[type, ...]) -> Iterator[str]:
    if isinstance(kind, types.StructType):
        if above.count(kind.cls) == 2:  # blocks hold blocks
            return
        for field in kind.fields:
            name = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _walk(field.type, name, (*above, kind.cls))
    elif isinstance(kind, types.ListType | types.VarTupleType):
        yield from _walk(kind.item_type, f"{path}[]", above)
    elif isinstance(kind, types.UnionType):
        for one in kind.types:
            yield from _walk(one, path, above)
    elif isinstance(kind, types.DictType):
        yield f"{path}{{}}"
    elif isinstance(kind, types.StrType | types.AnyType | types.RawType):
        yield path


def saying(word: str, given: Any) -> Any:
    """Return a body with another word in place of the forbidden one."""
    return json.loads(json.dumps(given).replace(doors.TERM, word))


def body_of(path: str, changes: dict[str, Any]) -> dict[str, Any]:
    base = dict(doors.SCHEMAS[path][1])
    if base.get("model") == "bert":
        base["model"] = BERT
    return base | changes


async def address(ring: Ring, path: str) -> str:
    if "{id}" not in path:
        return path
    made = (await ring.http.post("/v1/conversations", json={})).json()
    return path.replace("{id}", made["id"])


def test_every_route_with_a_body_is_known_here() -> None:
    posts = {route.path for route in _routes() if "POST" in (getattr(route, "methods", None) or ())}
    assert posts == set(doors.SCHEMAS) | set(closed_doors.UNREAD_ROUTES)
    assert set(doors.TEXTS) == set(doors.SCHEMAS) - set(closed_doors.UNREAD_ROUTES)


@pytest.mark.parametrize("path", doors.TEXTS)
def test_every_text_field_is_screened_closed_or_unread_for_a_reason(path: str) -> None:
    known = {*doors.TEXTS[path], *closed_doors.CLOSED, *closed_doors.UNREAD}
    missing = {
        field
        for field in fields(doors.SCHEMAS[path][0]) - known
        if not field.endswith(closed_doors.UNREAD_ENDS) and not any(part in field for part in closed_doors.UNREAD_PARTS)
    }
    assert not missing
    assert set(doors.TEXTS[path]) <= fields(doors.SCHEMAS[path][0])


async def test_a_forbidden_word_is_refused_in_every_text_field_of_every_route(guarded: Ring) -> None:
    for path, texts in doors.TEXTS.items():
        url = await address(guarded, path)
        for field, bodies in texts.items():
            for number, bad in enumerate(bodies):
                fine = await guarded.http.post(url, json=body_of(path, saying("harmless", bad)))
                assert fine.status_code == 200, (path, field, number, fine.text)
                before = len(guarded.replica.requests)
                found = await guarded.http.post(url, json=body_of(path, bad))
                assert found.status_code == 400, (path, field, number, found.text)
                assert "refused by the safety policy" in found.text, (path, field, number, found.text)
                assert doors.TERM not in found.text.replace(f"metadata.{doors.TERM}", "")
                assert len(guarded.replica.requests) == before


async def test_fields_that_take_no_text_refuse_it(guarded: Ring) -> None:
    for path in doors.TEXTS:
        url, schema = await address(guarded, path), fields(doors.SCHEMAS[path][0])
        bodies = [
            bad for field, bad in closed_doors.CLOSED.items() if field in schema and field not in doors.TEXTS[path]
        ]
        for bad in [
            *bodies,
            *([closed_doors.CLOSED_BLOCKS[path]] if path in closed_doors.CLOSED_BLOCKS else []),
        ]:
            before = len(guarded.replica.requests)
            found = await guarded.http.post(url, json=body_of(path, bad))
            assert found.status_code in (400, 404), (path, bad, found.text)
            assert len(guarded.replica.requests) == before


async def test_token_ids_are_read_as_the_text_they_stand_for(guarded: Ring, tiny_bert: Path) -> None:
    ids = [guarded.replica.token_id(bytes([byte])) for byte in doors.TERM.encode()]
    bert = Tokenizer.from_file(str(tiny_bert / "tokenizer.json")).encode("Deep seas.").ids
    asks: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/completions", {"prompt": ids}, "prompt"),
        ("/v1/completions", {"prompt": [[65], ids]}, "prompt[1]"),
        ("/v1/embeddings", {"input": [bert]}, "input"),
        ("/v1/embeddings", {"input": [[1, 2], bert]}, "input"),
    ]
    for path, changes, param in asks:
        found = await guarded.http.post(path, json=body_of(path, changes))
        assert (found.status_code, found.json()["error"]["code"]) == (400, "content_filter"), found.text
        assert found.json()["error"]["param"] == param


async def test_what_may_be_rewritten_is_redacted_and_the_rest_is_refused(guarded: Ring) -> None:
    number = "1234-5678"
    told = [{"type": "function", "function": saying(number, doors.TOOLS[at])} for at in (1, 3)]
    told[1]["function"]["name"] = "b"
    assert (await guarded.http.post(CHAT, json=body_of(CHAT, {"tools": told}))).status_code == 200
    seen = guarded.replica.requests[-1].request
    assert number not in repr(seen.tools) and "Looks up [redacted]." in repr(seen.tools)
    flat = [{"type": "function", **saying(number, doors.TOOLS[1])}]
    made = await guarded.http.post(RESPONSES, json=body_of(RESPONSES, {"tools": flat, "metadata": {"title": number}}))
    assert made.status_code == 200
    stored = await guarded.http.get(f"{RESPONSES}/{made.json()['id']}")
    assert number not in stored.text and stored.json()["metadata"] == {"title": "[redacted]"}
    assert number not in repr(guarded.replica.requests[-1].request)
    for at in (2, 4, 5, 7):
        found = await guarded.http.post(
            CHAT, json=body_of(CHAT, {"tools": [{"type": "function", "function": saying(number, doors.TOOLS[at])}]})
        )
        assert (found.status_code, found.json()["error"]["param"]) == (400, "tools[0]"), found.text


async def test_arguments_of_earlier_calls_are_read_without_escapes(guarded: Ring) -> None:
    for escaped, status in (("\\u007aorgblat", 400), ("\\u0068armless", 200)):
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": f'{{"q": "{escaped}"}}'}
        found = await guarded.http.post(RESPONSES, json=body_of(RESPONSES, {"input": [call, *doors.HI]}))
        assert found.status_code == status, found.text

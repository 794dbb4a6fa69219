"""/v1/conversations, as the page uses it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.edge.asks import RESPONSES
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio

PATH = "/v1/conversations"


async def make(ring: Ring, **fields: Any) -> str:
    response = await ring.http.post(PATH, json=fields)
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


async def test_the_list_is_newest_first_and_in_pages(ring: Ring) -> None:
    ids = [await make(ring, metadata={"title": str(at)}) for at in range(5)]
    await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi", "conversation": ids[1]})
    expected = [ids[1], ids[4], ids[3], ids[2], ids[0]]
    first = (await ring.http.get(PATH, params={"limit": 3})).json()
    assert [item["id"] for item in first["data"]] == expected[:3]
    assert first["has_more"] is True
    rest = (await ring.http.get(PATH, params={"limit": 3, "after": first["last_id"]})).json()
    assert [item["id"] for item in rest["data"]] == expected[3:]
    assert rest["has_more"] is False


async def test_metadata_that_was_read_can_be_written_back_however_full(ring: Ring) -> None:
    metadata = {f"key {at}": "value" for at in range(16)}
    conversation = await make(ring, metadata=metadata, items=[{"role": "user", "content": "hi"}])
    read = (await ring.http.get(f"{PATH}/{conversation}")).json()["metadata"]
    assert read == metadata
    assert (await ring.http.post(f"{PATH}/{conversation}", json={"metadata": read})).status_code == 200


async def test_a_conversation_counts_turns_and_takes_its_title_from_the_first_words(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    conversation = await make(ring)
    for text in ("what is water", "more"):
        await ring.http.post(RESPONSES, json={"model": "tiny", "input": text, "conversation": conversation})
    read = (await ring.http.get(f"{PATH}/{conversation}")).json()
    assert read["num_turns"] == 2
    assert read["metadata"]["title"] == "what is water"


async def test_metadata_may_be_taken_away_by_null(ring: Ring) -> None:
    conversation = (await ring.http.post(PATH, json={"metadata": {"a": "b"}})).json()["id"]
    response = await ring.http.post(f"{PATH}/{conversation}", json={"metadata": None})
    assert (response.status_code, response.json()["metadata"]) == (200, {})
    assert (await ring.http.post(f"{PATH}/{conversation}", json={})).status_code == 400


async def test_a_body_is_not_needed_to_make_one(ring: Ring) -> None:
    response = await ring.http.post(PATH)
    assert response.status_code == 200
    assert response.json()["object"] == "conversation"


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("metadata", "", {"metadata": "x"}),
    ("metadata.k", "", {"metadata": {"k": "x" * 513}}),
    ("items[0].type", "", {"items": [{"type": "image_generation_call"}]}),
]


async def test_wrong_bodies_and_pages_are_refused_by_name(ring: Ring) -> None:
    for param, path, body in WRONG:
        response = await ring.http.post(PATH + path, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    conversation = await make(ring)
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order")):
        response = await ring.http.get(f"{PATH}/{conversation}/items?{query}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_what_is_not_there_is_404(ring: Ring) -> None:
    gone = await make(ring)
    assert (await ring.http.delete(f"{PATH}/{gone}")).json()["deleted"] is True
    for name in (gone, "conv_nope", "x" * 3000):
        for method, path in (("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/items")):
            response = await ring.http.request(
                method, f"{PATH}/{name}{path}", json={"metadata": {}} if method == "POST" else None
            )
            assert response.status_code == 404, (method, path, response.text)
            assert response.json()["error"]["code"] == "not_found"

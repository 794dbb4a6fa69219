"""Items of conversations: put behind, read, paged, deleted; and what a deletion leaves, which is nothing."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest
from openai.types.conversations import ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from tests.gateway.edge.asks import RESPONSES
from tests.gateway.edge.store import keys_with, until_nothing_has
from tests.ring import Ring
from tests.script import say, tag, think
from wire.messages import pack_ids, unpack_ids

pytestmark = pytest.mark.anyio

PATH = "/v1/conversations"
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


async def make(ring: Ring, *texts: str) -> str:
    items = [{"role": "user", "content": text} for text in texts]
    return str((await ring.http.post(PATH, json={"items": items})).json()["id"])


async def listed(ring: Ring, conversation: str, **query: Any) -> list[dict[str, Any]]:
    answer = await ring.http.get(f"{PATH}/{conversation}/items", params={"order": "asc", "limit": 100, **query})
    assert answer.status_code == 200, answer.text
    ConversationItemList.model_validate(answer.json(), strict=True)
    items: list[dict[str, Any]] = answer.json()["data"]
    return items


def texts(items: list[dict[str, Any]]) -> list[str]:
    return ["".join(part["text"] for part in item["content"]) for item in items if "content" in item]


async def say_in(ring: Ring, conversation: str, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": text, "conversation": conversation, **fields}
    answer = await ring.http.post(RESPONSES, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_items_put_behind_a_conversation_are_in_the_next_prompt(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    conversation = await make(ring)
    await say_in(ring, conversation, "first")
    before = prompt_of(ring)
    items = [
        {"role": "user", "content": "added"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "result"},
    ]
    answer = await ring.http.post(f"{PATH}/{conversation}/items", json={"items": items})
    assert answer.status_code == 200, answer.text
    ConversationItemList.model_validate(answer.json(), strict=True)
    assert [item["type"] for item in answer.json()["data"]] == ["message", "function_call", "function_call_output"]
    assert [item["id"] for item in (await listed(ring, conversation))[-3:]] == [
        item["id"] for item in answer.json()["data"]
    ]
    await say_in(ring, conversation, "second")
    prompt = prompt_of(ring)
    answer_ids = [ring.replica.token_id(b"hello"), ring.replica.token_id(b" world"), ring.replica.end_token]
    assert prompt[: len(before) + 3] == before + answer_ids, "no encoder makes these pieces: they are the stored ids"
    text = ring.replica.vocabulary.decode_bytes(prompt)
    await say_in(ring, conversation, "third")
    assert prompt_of(ring)[: len(prompt) + 3] == prompt + answer_ids
    places = [text.index(word) for word in (b"first", b"hello", b"added", b"result", b"second")]
    assert places == sorted(places)


async def test_an_item_is_read_by_its_id_and_only_in_its_conversation(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    conversation, other = await make(ring, "earlier"), await make(ring)
    await say_in(ring, conversation, "hi", include=["message.output_text.logprobs"])
    for item in await listed(ring, conversation, include="message.output_text.logprobs"):
        path = f"{PATH}/{conversation}/items/{item['id']}"
        found = await ring.http.get(path, params={"include": "message.output_text.logprobs"})
        assert found.json() == item
        ITEM.validate_python(item, strict=True)
        assert (await ring.http.get(f"{PATH}/{other}/items/{item['id']}")).status_code == 404
    said = (await listed(ring, conversation, include="message.output_text.logprobs"))[-1]
    assert len(said["content"][0]["logprobs"]) == 1
    assert (await listed(ring, conversation))[-1]["content"][0]["logprobs"] == []


async def test_a_deleted_item_is_gone_from_the_list_the_prompt_and_the_store(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello"))
    conversation = await make(ring, "keep")
    await say_in(ring, conversation, "SECRET")
    await say_in(ring, conversation, "more")
    before = await listed(ring, conversation)
    assert texts(before) == ["keep", "SECRET", "hidden ", "hello", "more", "hidden ", "hello"]
    for at in (1, 2):
        answer = await ring.http.delete(f"{PATH}/{conversation}/items/{before[at]['id']}")
        assert answer.json()["id"] == conversation
        again = await ring.http.delete(f"{PATH}/{conversation}/items/{before[at]['id']}")
        assert (again.status_code, again.json()["error"]["param"]) == (404, "item_id")
    assert await listed(ring, conversation) == [before[0], *before[3:]]
    await say_in(ring, conversation, "last")
    text = ring.replica.vocabulary.decode_bytes(prompt_of(ring))
    assert b"SECRET" not in text and b"more" in text
    for item in await listed(ring, conversation):
        await ring.http.delete(f"{PATH}/{conversation}/items/{item['id']}")
    assert await listed(ring, conversation) == []
    assert (await ring.http.get(f"{PATH}/{conversation}")).json()["num_turns"] == 0


async def test_a_deleted_item_leaves_the_stored_ids_of_all_later_turns(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    conversation = await make(ring)
    for text in ("SECRET", "more"):
        await say_in(ring, conversation, text)
    word = pack_ids(ring.replica.token_id(bytes([byte])) for byte in b"SECRET")
    assert word in pack_ids(prompt_of(ring)) and await keys_with(ring, word) != []
    item = (await listed(ring, conversation))[0]
    await ring.http.delete(f"{PATH}/{conversation}/items/{item['id']}")
    await until_nothing_has(ring, word)
    await say_in(ring, conversation, "last")
    raw = ring.replica.vocabulary.decode_bytes(prompt_of(ring))
    assert b"SECRET" not in raw
    assert raw.count(b"hello") == 2


def prompt_of(ring: Ring) -> list[int]:
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None
    return unpack_ids(prompt.token_ids)


async def test_a_deleted_conversation_leaves_nothing_in_the_store(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    conversation = await make(ring, "SECRET")
    stored = await say_in(ring, conversation, "SECRET two", instructions="SECRET three")
    made = await say_in(ring, conversation, "SECRET four", background=True)
    with anyio.fail_after(60):
        while (await ring.http.get(f"{RESPONSES}/{made['id']}")).json()["status"] != "completed":
            await anyio.sleep(0.01)
    await ring.http.post(f"{PATH}/{conversation}/items", json={"items": [{"role": "user", "content": "SECRET five"}]})
    await ring.until_idle()
    assert await keys_with(ring, b"SECRET") != []
    assert (await ring.http.delete(f"{PATH}/{conversation}")).json()["deleted"] is True
    await until_nothing_has(ring, b"SECRET")
    left = await keys_with(ring, conversation[5:21].encode())
    assert [key for key in left if "ledger" not in key] == [], "the ledger names requests, without a word of them"
    assert (await ring.http.get(f"{RESPONSES}/{stored['id']}")).status_code == 404


async def test_many_writers_lose_nothing(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    conversation = await make(ring)

    async def add(text: str) -> None:
        body = {"items": [{"role": "user", "content": text}]}
        assert (await ring.http.post(f"{PATH}/{conversation}/items", json=body)).status_code == 200

    async def respond(text: str) -> None:
        await say_in(ring, conversation, text)

    async with anyio.create_task_group() as tasks:
        for at in range(6):
            tasks.start_soon(add, f"added {at}")
            tasks.start_soon(respond, f"said {at}")
    found = texts(await listed(ring, conversation))
    assert sorted(text for text in found if text != "hello") == sorted(
        [*(f"added {at}" for at in range(6)), *(f"said {at}" for at in range(6))]
    )
    assert found.count("hello") == 6


async def test_wrong_items_are_refused_by_name(ring: Ring) -> None:
    conversation = await make(ring)
    message = {"role": "user", "content": "x"}
    for body, param in (
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": [message] * 21}, "items"),
        ({"items": [{"type": "reasoning", "summary": []}]}, "items"),
        ({"items": [{"role": "boss", "content": "x"}]}, "items[0].role"),
    ):
        answer = await ring.http.post(f"{PATH}/{conversation}/items", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    answer = await ring.http.get(f"{PATH}/{conversation}/items?include=nothing")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "include[0]")
    for method, path in (("POST", "conv_nope/items"), ("GET", f"{conversation}/items/msg_nope")):
        answer = await ring.http.request(method, f"{PATH}/{path}", json={"items": [message]})
        assert answer.status_code == 404


async def test_openais_client_does_all_of_it(ring: Ring) -> None:
    async with ring.openai() as client:
        conversation = await client.conversations.create()
        made = await client.conversations.items.create(
            conversation.id, items=[{"type": "message", "role": "user", "content": text} for text in ("a", "b")]
        )
        first, second = made.data
        assert (await client.conversations.items.retrieve(first.id, conversation_id=conversation.id)).id == first.id
        left = await client.conversations.items.delete(first.id, conversation_id=conversation.id)
        assert left.id == conversation.id
        assert [item.id async for item in client.conversations.items.list(conversation.id)] == [second.id]
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.retrieve(first.id, conversation_id=conversation.id)

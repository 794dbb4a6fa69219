"""The operations behind /v1/conversations and /v1/responses/{id}; OpenAI's own client judges the shapes."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from openai.types.conversations import Conversation, ConversationItem
from openai.types.responses import Response
from pydantic import TypeAdapter

from cache_svc.history.desk import HistoryDesk
from cache_svc.history.service import serve_streams
from cache_svc.history.settings import HistorySettings
from cache_svc.history.store import Store, Stored
from tests.cache_svc.history.conftest import MODEL, PlayedEdge
from wire import topics
from wire.bus import Bus
from wire.errors import ConflictError, InvalidRequestError, NotFoundError
from wire.messages import (
    ChatMessage,
    ConversationRef,
    HistoryCall,
    Holder,
    Image,
    ImageRef,
    Images,
    Job,
    Request,
    ToolCall,
    Turn,
)

pytestmark = pytest.mark.anyio


async def pages(edge: PlayedEdge, op: str, limit: int, **args: Any) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = await edge.call(op, limit=limit, after=after, **args)
        assert len(page["data"]) <= limit
        found += [item["id"] for item in page["data"]]
        if page["data"]:
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            return found
        after = page["last_id"]


async def test_a_conversation_has_openais_shape_and_keeps_its_metadata(edge: PlayedEdge) -> None:
    conversation = await edge.create(topic="rain")
    made = await edge.call("get_conversation", id=conversation)
    assert Conversation.model_validate(made, strict=True).metadata == {"topic": "rain"}
    changed = await edge.call("update_conversation", id=conversation, metadata={"title": "Weather"})
    assert changed["metadata"] == {"title": "Weather"}
    assert changed["updated_at"] >= made["updated_at"]
    deleted = await edge.call("delete_conversation", id=conversation)
    assert deleted == {"id": conversation, "object": "conversation.deleted", "deleted": True}
    for op in ("get_conversation", "delete_conversation", "list_items"):
        with pytest.raises(NotFoundError) as caught:
            await edge.call(op, id=conversation)
        assert caught.value.param == "conversation"
    with pytest.raises(NotFoundError):
        await edge.call("update_conversation", id=conversation, metadata={})


async def test_a_conversation_without_a_title_is_named_after_its_first_words(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    assert (await edge.call("get_conversation", id=conversation))["metadata"] == {}
    await edge.say(conversation, "  tell me\n about " + "rain " * 40, "a")
    await edge.say(conversation, "and snow?", "a")
    title = (await edge.call("get_conversation", id=conversation))["metadata"]["title"]
    assert title == ("tell me about " + "rain " * 40)[:60].rstrip()
    await edge.call("update_conversation", id=conversation, metadata={"title": "Mine"})
    assert (await edge.call("get_conversation", id=conversation))["metadata"]["title"] == "Mine"


async def test_a_name_goes_with_the_words_that_it_is_made_of(edge: PlayedEdge) -> None:
    async def metadata() -> dict[str, str]:
        found: dict[str, str] = (await edge.call("get_conversation", id=conversation))["metadata"]
        return found

    conversation = await edge.create("poor words", "more of it")
    given = (await edge.call("list_items", id=conversation, order="asc"))["data"]
    assert await metadata() == {"title": "poor words"}
    await edge.call("delete_item", id=conversation, item_id=given[0]["id"])
    assert await metadata() == {"title": "more of it"}
    await edge.call("delete_item", id=conversation, item_id=given[1]["id"])
    assert await metadata() == {}
    first = await edge.say(conversation, "poor words", "a1")
    await edge.say(conversation, "q2", "a2")
    await edge.call("delete_response", id=first)
    assert await metadata() == {}
    await edge.say(conversation, "q3", "a3")
    assert await metadata() == {"title": "q3"}
    head = f"hr:{{c{conversation[5:21]}}}:head"
    assert not [value for value in await edge.bus.route.call("", "HVALS", head) if b"poor words" in value]


async def test_conversations_are_listed_last_used_first_page_by_page(edge: PlayedEdge) -> None:
    made = []
    for _ in range(7):
        made.append(await edge.create())
        await anyio.sleep(0.002)  # times have milliseconds
    await edge.say(made[2], "q", "a")
    await edge.call("delete_conversation", id=made[4])
    expected = [made[2], *(made[at] for at in (6, 5, 3, 1, 0))]
    for limit in (1, 2, 6, 100):
        assert await pages(edge, "list_conversations", limit) == expected
    listed = (await edge.call("list_conversations", limit=1))["data"][0]
    assert (listed["num_turns"], listed["metadata"]["title"]) == (1, "q")


async def test_conversations_of_the_same_millisecond_are_paged_without_loss(edge: PlayedEdge) -> None:
    made = [await edge.create() for _ in range(9)]
    for key in await edge.bus.route.call("", "KEYS", "*conversations*"):
        for conversation in made:
            await edge.bus.route.call("", "ZADD", key, 1_900_000_000_000, conversation)
    for limit in (1, 2, 4):
        assert await pages(edge, "list_conversations", limit) == sorted(made, reverse=True)


async def test_a_page_goes_on_after_a_conversation_of_another_partition(edge: PlayedEdge) -> None:
    made = []
    for number in range(6):
        made.append(await edge.create())
        await anyio.sleep(0.002)
        if number % 2:  # as if it lived in partition 1
            (key,) = await edge.bus.route.call("", "KEYS", "*conversations:0")
            elsewhere = key.replace(b":0", b":1")
            score = await edge.bus.route.call("", "ZSCORE", key, made[-1])
            await edge.bus.route.call("", "ZADD", elsewhere, score, made[-1])
            await edge.bus.route.call("", "ZREM", key, made[-1])
    page = await edge.call("list_conversations", limit=2, after=made[3])
    assert [item["id"] for item in page["data"]] == [made[2], made[0]]
    with pytest.raises(NotFoundError) as caught:
        await edge.call("list_conversations", after="conv_" + "0" * 40)
    assert caught.value.param == "after"


async def test_an_expired_conversation_drops_out_of_the_list(edge: PlayedEdge) -> None:
    kept, expired = await edge.create(), await edge.create()
    await edge.bus.route.call("", "DEL", f"hr:{{c{expired[5:21]}}}:head")
    assert await pages(edge, "list_conversations", 1) == [kept]
    (key,) = await edge.bus.route.call("", "KEYS", "*conversations*")
    assert await edge.bus.route.call("", "ZCARD", key) == 1


async def test_items_are_paged_in_both_orders_across_turns(edge: PlayedEdge) -> None:
    conversation = await edge.create("x", "y")
    for number in range(4):
        await edge.say(conversation, f"q{number}", f"a{number}")
    oldest_first = await pages(edge, "list_items", 100, id=conversation, order="asc")
    assert len(set(oldest_first)) == 10
    for limit in (1, 2, 3, 7, 10):
        assert await pages(edge, "list_items", limit, id=conversation, order="asc") == oldest_first
        assert await pages(edge, "list_items", limit, id=conversation, order="desc") == oldest_first[::-1]
    with pytest.raises(NotFoundError) as caught:
        await edge.call("list_items", id=conversation, after="msg_unknown")
    assert caught.value.param == "after"


async def test_items_have_openais_shapes_and_name_their_response(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    ref = edge.ref(conversation)
    job = await edge.ask(ref)
    await edge.recalled(job)
    call = ToolCall(id="call_1", name="add", arguments='{"a":1}')
    turn = edge.turn(job, ref)
    spoken = (
        ChatMessage(role="assistant", content="let me see", reasoning="hm", tool_calls=(call,)),
        ChatMessage(role="tool", content="3", tool_call_id="call_1"),
        ChatMessage(role="assistant", content="three"),
    )
    await edge.send(type(turn)(**{name: getattr(turn, name) for name in turn.__struct_fields__} | {"output": spoken}))
    await edge.stored(ref.response_id)
    page = await edge.call("list_items", id=conversation, order="asc")
    items = [TypeAdapter[Any](ConversationItem).validate_python(item) for item in page["data"]]
    assert [item.type for item in items] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert len({item.id for item in items}) == 6
    assert {item["response_id"] for item in page["data"]} == {ref.response_id}
    found = await edge.recall(conversation)
    assert [message.role for message in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1].tool_calls == (call,)


async def test_a_response_is_shown_as_the_client_got_it(edge: PlayedEdge) -> None:
    ref = edge.ref()
    job = await edge.ask(ref)
    output = [
        {
            "id": "msg_given",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": [{"token": "a"}]}],
        }
    ]
    response = {"id": ref.response_id, "object": "response", "status": "completed", "model": MODEL, "output": output}
    await edge.send(edge.turn(job, ref, response=response))
    assert await edge.stored(ref.response_id) == response


async def test_a_response_without_an_object_of_the_edges_is_put_together(edge: PlayedEdge) -> None:
    response = await edge.say(None, "q", "a", usage={"input_tokens": 1})
    found = Response.model_construct(**await edge.call("get_response", id=response))
    assert (found.status, found.model, found.object) == ("completed", MODEL, "response")
    assert found.usage is not None
    assert found.usage.input_tokens == 1


async def test_the_items_that_went_into_a_response_can_be_listed(edge: PlayedEdge) -> None:
    first = await edge.say(None, "q1", "a1")
    second = await edge.say(first, "q2", "a2")
    page = await edge.call("list_input_items", id=second)
    assert [item["content"] for item in page["data"]] == [[{"type": "input_text", "text": "q2"}]]
    assert not page["has_more"]
    with pytest.raises(NotFoundError):
        await edge.call("list_input_items", id="resp_" + "0" * 40)


async def test_a_response_under_way_can_be_looked_at_and_not_deleted(edge: PlayedEdge) -> None:
    ref = edge.ref()
    job = await edge.ask(ref)
    await edge.recalled(job)
    found = await edge.call("get_response", id=ref.response_id)
    assert (found["status"], found["output"], found["model"]) == ("in_progress", [], MODEL)
    with pytest.raises(ConflictError):
        await edge.call("delete_response", id=ref.response_id)
    await edge.bus.cancel(0, job.request_id)
    with pytest.raises(NotFoundError):  # it will never be there
        await edge.call("get_response", id=ref.response_id)


async def test_a_call_at_one_desk_waits_for_the_turn_that_another_stores(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, may_store, num_held = Store.store, anyio.Event(), 0

    async def held(self: Store, turn: Turn, images: Images | None = None) -> Stored:
        nonlocal num_held
        num_held += 1
        await may_store.wait()
        return await store(self, turn, images)

    monkeypatch.setattr(Store, "store", held)
    monkeypatch.setattr("cache_svc.history.waiting._STORING_MS", 3_600_000.0)
    edge = PlayedEdge(bus)
    settings = HistorySettings(
        models=(MODEL,), history_turn_wait_s=3600.0, history_rewrite_s=0.0, history_concurrency=2
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_streams, bus, settings, HistoryDesk(bus, settings))
        refs = [edge.ref(), edge.ref()]
        for ref in refs:
            job = await edge.ask(ref)
            await edge.recalled(job)
            await edge.send(edge.turn(job, ref))
        with anyio.fail_after(60):
            while num_held < 2:  # so that it has no room for a call
                await anyio.sleep(0.003)
        await tasks.start(serve_streams, bus, settings, HistoryDesk(bus, settings))
        with anyio.move_on_after(0.15) as scope:
            await edge.call("get_response", id=refs[1].response_id)
        assert scope.cancelled_caught
        may_store.set()
        assert (await edge.call("get_response", id=refs[1].response_id))["status"] == "completed"
        tasks.cancel_scope.cancel()


async def admit_unread(edge: PlayedEdge, ref: ConversationRef, image: Image | None = None, **reply: Any) -> Job:
    """Admit a response whose job no history desk comes to."""
    holder = Holder(edge="hr:edge:e", deadline=time.time() + 60)
    job = Job(request_id=ref.response_id, partition=0, model="m", edge=holder.edge, deadline=holder.deadline)
    images = (ImageRef(offset=0, digest=image.digest, width=1, height=1),) if image is not None else ()
    request = Request(
        model="m",
        messages=(ChatMessage(role="user", content="What is this?", images=images),),
        conversation=ref,
        tenant=edge.tenant,
        created_at=time.time(),
        reply={"background": True, **reply},
    )
    pictures = {"images": Images(images=(image,))} if image is not None else {}
    fields = {"request": request, "holder": holder, **pictures}
    await edge.bus.admit(job, fields, to=topics.tokenizer(0, "m"), ttl_s=60)
    return job


async def test_a_response_is_there_before_its_job_has_passed_the_desk(edge: PlayedEdge) -> None:
    ref = edge.ref()
    job = await admit_unread(edge, ref)
    with pytest.raises(NotFoundError):
        await PlayedEdge(edge.bus, "another").call("get_response", id=ref.response_id)
    assert (await edge.call("get_response", id=ref.response_id))["status"] == "queued"
    with pytest.raises(NotFoundError):
        await PlayedEdge(edge.bus, "another").call("delete_response", id=ref.response_id, running=True)
    await edge.send(edge.turn(job, ref))
    assert (await edge.stored(ref.response_id))["status"] == "completed"


async def test_a_conversation_tells_what_is_made_in_it_and_what_was_asked(edge: PlayedEdge) -> None:
    async def running() -> list[str]:
        found: list[str] = (await edge.call("get_conversation", id=conversation))["running"]
        return found

    conversation = await edge.create()
    refs = [edge.ref(conversation) for _ in range(4)]
    jobs = [await admit_unread(edge, ref, Image.of("image/png", b"a"), background=ref != refs[1]) for ref in refs]
    for ref in refs:
        await edge.call("get_response", id=ref.response_id)
    ids = [ref.response_id for ref in refs]
    assert await running() == [ids[0], *ids[2:]]
    page = await edge.call("list_input_items", id=ids[0], pictures=True)
    picture, words = page["data"][0]["content"]
    assert (picture["image_url"], words["text"]) == ("data:image/png;base64,YQ==", "What is this?")
    assert (await edge.call("list_input_items", id=ids[0]))["data"][0]["content"][0]["image_url"] is None
    with pytest.raises(NotFoundError):
        await PlayedEdge(edge.bus, "another").call("list_input_items", id=ids[0])
    await edge.send(edge.turn(jobs[0], refs[0]))
    await edge.bus.cancel(0, ids[2])
    await edge.stored(ids[0])
    assert await running() == ids[3:]


async def test_a_response_can_be_deleted_before_its_job_has_passed_the_desk(edge: PlayedEdge) -> None:
    ref = edge.ref()
    job = await admit_unread(edge, ref)
    with pytest.raises(ConflictError):
        await edge.call("delete_response", id=ref.response_id)
    await edge.call("delete_response", id=ref.response_id, running=True)
    await edge.send(edge.turn(job, ref))
    await edge.settled()
    with pytest.raises(NotFoundError):
        await edge.call("get_response", id=ref.response_id)


async def test_a_deletion_has_the_append_only_file_rewritten(edge: PlayedEdge) -> None:
    conversation = await edge.create("words to be forgotten")
    before = await _rewrites(edge)
    await edge.call("delete_conversation", id=conversation)
    with anyio.fail_after(60):
        while await _rewrites(edge) == before:
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("op", "args", "param"),
    [
        ("fly", {}, "op"),
        ("list_conversations", {"limit": 101}, "limit"),
        ("list_conversations", {"limit": "x"}, "limit"),
        ("list_items", {"id": "conv_" + "0" * 40, "order": "up"}, "order"),
    ],
)
async def test_a_bad_call_is_answered_with_the_field_at_fault(
    edge: PlayedEdge, op: str, args: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await edge.call(op, **args)
    assert caught.value.param == param


async def test_a_call_whose_caller_has_given_up_is_not_answered(edge: PlayedEdge) -> None:
    call = HistoryCall(call_id="c", edge="hr:edge:gone", op="list_conversations", tenant="", deadline=1.0)
    await edge.bus.send("hr:{p0}:history", call, maxlen=10)
    await edge.settled()
    assert await edge.bus.route.call("", "EXISTS", "hr:edge:gone") == 0


async def _rewrites(edge: PlayedEdge) -> int:
    info: bytes = await edge.bus.route.call("", "INFO", "persistence")
    fields = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
    number: bytes = fields.get(b"aof_rewrites", b"0")
    return int(number)

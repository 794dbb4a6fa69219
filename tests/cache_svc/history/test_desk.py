"""Conversations and response chains through the real desk over the real server."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from cache_svc.history.catalog import Catalog
from tests.cache_svc.history.conftest import PlayedEdge
from wire.errors import ConflictError, NotFoundError, OverloadedError
from wire.messages import Recalled, unpack_ids

pytestmark = pytest.mark.anyio


def texts(recalled: Recalled | None) -> list[str]:
    assert recalled is not None
    return [message.content for message in recalled.messages]


async def test_a_conversation_recalls_all_its_messages_and_the_ids_of_its_newest_turn(edge: PlayedEdge) -> None:
    conversation = await edge.create("before")
    await edge.say(conversation, "q1", "a1", ids=[1, 2, 3])
    await edge.say(conversation, "q2", "a2", ids=[1, 2, 3, 4, 5])
    found = await edge.recall(conversation)
    assert texts(found) == ["before", "q1", "a1", "q2", "a2"]
    assert [message.role for message in found.messages] == ["user", "user", "assistant", "user", "assistant"]
    assert unpack_ids(found.prompt_ids) == [1, 2, 3, 4, 5]
    assert (found.covers, found.version, found.conversation_id) == (5, 3, conversation)
    assert all(message.item_id for message in found.messages)


async def test_a_chain_can_be_continued_from_any_response(edge: PlayedEdge) -> None:
    first = await edge.say(None, "q1", "a1", ids=[1, 2, 3])
    second = await edge.say(first, "q2", "a2", ids=[1, 2, 3, 4, 5])
    branch = await edge.say(first, "q2b", "a2b", ids=[1, 2, 9])
    third = await edge.say(second, "q3", "a3", ids=[1, 2, 3, 4, 5, 6])
    expected = {
        first: (["q1", "a1"], [1, 2, 3]),
        second: (["q1", "a1", "q2", "a2"], [1, 2, 3, 4, 5]),
        branch: (["q1", "a1", "q2b", "a2b"], [1, 2, 9]),
        third: (["q1", "a1", "q2", "a2", "q3", "a3"], [1, 2, 3, 4, 5, 6]),
    }
    for response, (messages, ids) in expected.items():
        found = await edge.recall(response)
        assert (texts(found), unpack_ids(found.prompt_ids), found.covers) == (messages, ids, len(messages))


async def test_a_turn_whose_place_on_the_list_could_not_be_written_gets_it_later(
    edge: PlayedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await edge.create("one"), await edge.create("two")
    real, faults = Catalog.touch, [OverloadedError("the bus is out of memory")]

    async def touch(catalog: Catalog, *args: Any) -> None:
        if faults:
            raise faults.pop()
        await real(catalog, *args)

    monkeypatch.setattr(Catalog, "touch", touch)
    await edge.say(first, "q", "a")
    await edge.settled()
    listed = await edge.call("list_conversations")
    assert [conversation["id"] for conversation in listed["data"]] == [first, second]
    assert await edge.texts(first) == ["one", "q", "a"]


async def test_a_chain_stores_only_the_ids_that_are_new(edge: PlayedEdge) -> None:
    response = await edge.say(None, "q", "a", ids=range(10_000))
    before = await _stored_bytes(edge, response)
    await edge.say(response, "q", "a", ids=range(10_010))
    assert await _stored_bytes(edge, response) - before < 1000


async def test_a_response_of_a_conversation_can_be_branched_from(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    first = await edge.say(conversation, "q1", "a1")
    await edge.say(conversation, "q2", "a2")
    branch = await edge.say(first, "q2b", "a2b", ids=[7])
    assert texts(await edge.recall(branch)) == ["q1", "a1", "q2b", "a2b"]
    assert unpack_ids((await edge.recall(branch)).prompt_ids) == [7]
    assert await edge.texts(conversation) == ["q1", "a1", "q2", "a2"]


async def test_ids_of_another_model_are_not_recalled(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    response = await edge.say(None, "q", "a", ids=[1])
    await edge.say(conversation, "q", "a", ids=[1])
    for before in (conversation, response):
        found = await edge.recall(before, model="other")
        assert (texts(found), found.prompt_ids, found.covers) == (["q", "a"], b"", 0)


async def test_ids_of_a_shortened_prompt_cover_no_message(edge: PlayedEdge) -> None:
    response = await edge.say(None, "q", "a", ids=[1], usage={"headrace": {"messages_dropped": 3}})
    found = await edge.recall(response)
    assert (unpack_ids(found.prompt_ids), found.covers) == ([1], 0)


async def test_twenty_parallel_writers_to_one_conversation_lose_nothing(edge: PlayedEdge) -> None:
    conversation = await edge.create()

    async def write(number: int) -> None:
        ref = edge.ref(conversation)
        job = await edge.ask(ref, f"q{number}")
        await edge.recalled(job)
        turn = edge.turn(job, ref, f"q{number}", f"a{number}", ids=[number])
        for _ in range(random.randint(1, 3)):  # a repeat changes nothing
            await edge.send(turn)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(write, number)
    with anyio.fail_after(60):
        while len(found := await edge.texts(conversation)) < 40:
            await anyio.sleep(0.01)
    questions, answers = found[0::2], found[1::2]
    assert sorted(questions) == sorted(f"q{number}" for number in range(20))
    assert answers == [f"a{question[1:]}" for question in questions]
    recalled = await edge.recall(conversation)
    assert texts(recalled) == found  # one order, whoever asks
    assert (await edge.call("get_conversation", id=conversation))["num_turns"] == 20


async def test_ids_of_a_turn_that_missed_another_writers_turn_do_not_pass_for_the_conversations(
    edge: PlayedEdge,
) -> None:
    conversation = await edge.create()
    slow, quick = edge.ref(conversation), edge.ref(conversation)
    quick_job = await edge.ask(quick)
    await edge.recalled(quick_job)
    await edge.bus.cancel(0, quick_job.request_id)  # so that the slow one does not wait for it
    slow_job = await edge.ask(slow)
    await edge.recalled(slow_job)
    await edge.send(edge.turn(quick_job, quick, "q1", "a1", ids=[1, 1]))
    await edge.stored(quick.response_id)
    await edge.send(edge.turn(slow_job, slow, "q2", "a2", ids=[2, 2]))
    await edge.stored(slow.response_id)
    found = await edge.recall(conversation)
    assert texts(found) == ["q1", "a1", "q2", "a2"]
    assert (unpack_ids(found.prompt_ids), found.covers) == ([1, 1], 2)


async def test_the_next_request_waits_for_a_turn_that_is_on_its_way(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    for before in (conversation, None):
        ref = edge.ref(before)
        job = await edge.ask(ref)
        await edge.recalled(job)
        following = await edge.ask(edge.ref(before or ref.response_id), "next")
        with anyio.move_on_after(0.15) as scope:
            await edge.recalled(following)
        assert scope.cancelled_caught
        await edge.send(edge.turn(job, ref, "q", "a"))
        found = await edge.recalled(following)
        assert found is not None
        assert texts(found) == ["q", "a"]


async def test_a_turn_that_will_not_come_holds_nobody_up_for_long(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    ended = await edge.ask(edge.ref(conversation))
    await edge.recalled(ended)
    await edge.bus.cancel(0, ended.request_id)
    assert texts(await edge.recall(conversation, store=True)) == []  # for a living one it would wait an hour


async def test_the_next_request_waits_for_the_turn_of_an_answer_that_was_stopped(
    edge: PlayedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_svc.history.waiting._FAILED_PATIENCE_S", 0.0)
    ref = edge.ref()
    job = await edge.ask(ref)
    await edge.recalled(job)
    await edge.bus.cancel(0, job.request_id, turn_follows=True)
    assert (await edge.call("get_response", id=ref.response_id))["status"] == "in_progress"
    following = await edge.ask(edge.ref(ref.response_id), "next")
    with anyio.move_on_after(0.15) as scope:
        await edge.recalled(following)
    assert scope.cancelled_caught
    await edge.send(edge.turn(job, ref, "q", "a"))
    found = await edge.recalled(following)
    assert found is not None and texts(found) == ["q", "a"]


@pytest.mark.parametrize("history_settings", [0.05], indirect=True)
async def test_a_response_still_being_generated_is_a_conflict_after_a_bounded_wait(edge: PlayedEdge) -> None:
    ref = edge.ref()
    await edge.recalled(await edge.ask(ref))
    with pytest.raises(ConflictError) as caught:
        await edge.recall(ref.response_id)
    assert caught.value.param == "previous_response_id"
    conversation = await edge.create()
    await edge.recalled(await edge.ask(edge.ref(conversation)))
    assert texts(await edge.recall(conversation)) == []  # a conversation goes on without it; its turn is merged later


@pytest.mark.parametrize(
    ("before", "param"),
    [
        ("resp_" + "0" * 40, "previous_response_id"),
        ("resp_{}:*", "previous_response_id"),
        ("x", "previous_response_id"),
        ("conv_" + "0" * 40, "conversation"),
        ("conv_}{", "conversation"),
    ],
)
@pytest.mark.parametrize("store", [True, False])
async def test_continuing_what_is_not_there_ends_with_404_naming_the_field(
    edge: PlayedEdge, before: str, param: str, store: bool
) -> None:
    with pytest.raises(NotFoundError) as caught:
        await edge.recall(before, store=store)
    assert caught.value.param == param


async def test_a_tenant_never_sees_what_is_anothers(edge: PlayedEdge) -> None:
    conversation = await edge.create("secret")
    response = await edge.say(conversation, "q", "a")
    alone = await edge.say(None, "q", "a")
    other = PlayedEdge(edge.bus, "other")
    for before in (conversation, response, alone):
        with pytest.raises(NotFoundError):
            await other.recall(before)
        with pytest.raises(NotFoundError):
            await other.recall(before, store=True)
    for op in ("get_conversation", "list_items", "delete_conversation"):
        with pytest.raises(NotFoundError):
            await other.call(op, id=conversation)
    for op in ("get_response", "delete_response", "list_input_items"):
        with pytest.raises(NotFoundError):
            await other.call(op, id=alone)
    assert (await other.call("list_conversations"))["data"] == []
    # Nor can a forged turn be put into it.
    ref = other.ref(conversation)
    job = await other.ask(other.ref())
    await other.send(other.turn(job, ref, "intruder", "x"))
    await edge.settled()
    assert await edge.texts(conversation) == ["secret", "q", "a"]


async def test_a_request_that_continues_nothing_passes_untouched(edge: PlayedEdge) -> None:
    assert await edge.recalled(await edge.ask(edge.ref(store=False))) is None


async def test_a_later_attempt_replaces_a_partial_turn_in_its_place_and_an_earlier_one_never(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    ref = edge.ref(conversation)
    job = await edge.ask(ref)
    await edge.recalled(job)
    await edge.send(edge.turn(job, ref, "q1", "par", status="incomplete", attempt=1, ids=[1]))
    await edge.stored(ref.response_id)
    await edge.say(conversation, "q2", "a2")
    await edge.send(edge.turn(job, ref, "q1", "partial and whole", attempt=2, ids=[1, 2]))
    await edge.settled()
    await edge.send(edge.turn(job, ref, "q1", "late", attempt=1))
    await edge.settled()
    assert await edge.texts(conversation) == ["q1", "partial and whole", "q2", "a2"]
    found = await edge.recall(conversation)
    assert texts(found) == ["q1", "partial and whole", "q2", "a2"]
    assert (found.prompt_ids, found.covers) == (b"", 0)  # the kept ids were of the replaced text


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_partial_answers_are_kept_and_marked_and_those_that_broke_without_text_leave_no_trace(
    edge: PlayedEdge, status: str
) -> None:
    conversation = await edge.create()
    await edge.say(conversation, "q1", "half", status="incomplete")
    broken = await edge.say(conversation, "q2", "", status=status)
    await edge.say(conversation, "q3", "a3")
    page = await edge.call("list_items", id=conversation, order="asc")
    assert [(item["content"][0]["text"], item["status"]) for item in page["data"]] == [
        ("q1", "completed"),
        ("half", "incomplete"),
        ("q3", "completed"),
        ("a3", "completed"),
    ]
    assert (await edge.call("get_response", id=broken))["status"] == status


async def test_a_turn_of_a_deleted_conversation_does_not_bring_it_back(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    ref = edge.ref(conversation)
    job = await edge.ask(ref)
    await edge.recalled(job)
    await edge.call("delete_conversation", id=conversation)
    await edge.send(edge.turn(job, ref))
    await edge.settled()
    with pytest.raises(NotFoundError):
        await edge.call("get_conversation", id=conversation)
    with pytest.raises(NotFoundError):
        await edge.recall(conversation)
    assert not [key for key in await _keys(edge) if conversation[5:21].encode() in key]


async def test_a_deleted_responses_text_stays_only_as_long_as_a_later_one_builds_on_it(edge: PlayedEdge) -> None:
    first = await edge.say(None, "first words", "a1")
    second = await edge.say(first, "second words", "a2")
    third = await edge.say(second, "q3", "a3")
    for response in (first, second):
        await edge.call("delete_response", id=response)
        with pytest.raises(NotFoundError):
            await edge.call("get_response", id=response)
        with pytest.raises(NotFoundError):
            await edge.recall(response)
        with pytest.raises(NotFoundError):
            await edge.call("delete_response", id=response)
    assert texts(await edge.recall(third)) == ["first words", "a1", "second words", "a2", "q3", "a3"]
    await edge.call("delete_response", id=third)
    for part in ("turns", "head"):  # a chain has no title: it would be the first words
        values = await edge.bus.route.call("", "HVALS", f"hr:{{c{first[5:21]}}}:{part}")
        assert not [value for value in values if b"words" in value]


async def test_deleting_the_newest_response_of_a_conversation_takes_its_turn_back(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    first = await edge.say(conversation, "q1", "a1", ids=[1, 2])
    second = await edge.say(conversation, "q2", "poor words", ids=[1, 2, 3, 4])
    await edge.call("delete_response", id=second)
    assert await edge.texts(conversation) == ["q1", "a1"]
    assert (await edge.call("get_conversation", id=conversation))["num_turns"] == 1
    recalled = await edge.recall(conversation)
    assert (texts(recalled), recalled.covers, unpack_ids(recalled.prompt_ids)) == (["q1", "a1"], 2, [1, 2])
    turns = f"hr:{{c{conversation[5:21]}}}:turns"
    assert not [value for value in await edge.bus.route.call("", "HVALS", turns) if b"poor words" in value]
    third = await edge.say(conversation, "q2", "a2", ids=[1, 2, 3, 5])
    assert await edge.texts(conversation) == ["q1", "a1", "q2", "a2"]
    assert (await edge.recall(conversation)).covers == 4
    await edge.call("delete_response", id=first)  # what followed was said after it: it stays
    assert await edge.texts(conversation) == ["q1", "a1", "q2", "a2"]
    await edge.call("delete_response", id=third)  # nothing followed any more: both go
    assert await edge.texts(conversation) == []
    assert (await edge.call("get_conversation", id=conversation))["num_turns"] == 0
    assert not [value for value in await edge.bus.route.call("", "HVALS", turns) if b"q1" in value]


async def test_ids_of_a_turn_that_saw_a_turn_taken_back_are_not_kept(edge: PlayedEdge) -> None:
    conversation = await edge.create()
    await edge.say(conversation, "q1", "a1", ids=[1, 2])
    second = await edge.say(conversation, "q2", "a2", ids=[1, 2, 3, 4])
    ref = edge.ref(conversation)
    job = await edge.ask(ref, "q3")
    assert texts(await edge.recalled(job)) == ["q1", "a1", "q2", "a2"]
    await edge.call("delete_response", id=second)
    await edge.send(edge.turn(job, ref, "q3", "a3", ids=[1, 2, 3, 4, 5, 6]))
    await edge.stored(ref.response_id)
    recalled = await edge.recall(conversation)
    assert texts(recalled) == ["q1", "a1", "q3", "a3"]
    assert (recalled.covers, unpack_ids(recalled.prompt_ids)) == (2, [1, 2])


async def test_everything_expires_some_time_after_the_last_write(edge: PlayedEdge) -> None:
    conversation = await edge.create("x")
    await edge.say(conversation, "q", "a")
    await edge.say(None, "q", "a")
    month_ms = 30 * 86_400_000
    for key in await _keys(edge):
        if b"{c" in key or b"{t" in key:
            assert month_ms - 60_000 < await edge.bus.route.call("", "PTTL", key) <= month_ms, key


async def _keys(edge: PlayedEdge) -> list[bytes]:
    found: list[bytes] = await edge.bus.route.call("", "KEYS", "*")
    return found


async def _stored_bytes(edge: PlayedEdge, response: str) -> int:
    values: list[bytes] = await edge.bus.route.call("", "HVALS", f"hr:{{c{response[5:21]}}}:turns")
    return sum(map(len, values))

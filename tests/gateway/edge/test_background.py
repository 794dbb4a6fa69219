"""Responses made in the background: they go on without their client, and without the edge that began them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import httpx
import openai
import pytest
from openai.types.responses import Response

from gateway.edge.admits import Admits
from gateway.edge.background import Background
from gateway.edge.event_log import EventLog
from gateway.edge.generation import Generation
from gateway.edge.leases import Leases
from gateway.edge.settings import EdgeSettings
from tests.gateway.edge.asks import RESPONSES, lines_until
from tests.gateway.edge.sse import Event, Stream, read
from tests.gateway.edge.store import until_nothing_has
from tests.gateway.edge.test_responses_shape import EVENT, built
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from wire import topics
from wire.bus import Bus
from wire.errors import InternalError, NotFoundError, OverloadedError, UnavailableError
from wire.messages import ConversationRef, Request

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "tiny", "input": "hi", "background": True}
OVER = ("completed", "failed", "incomplete", "cancelled")


@pytest.fixture
async def short_of_lease(make_ring: MakeRing) -> AsyncIterator[Ring]:
    """A ring in which the work of an edge that is gone is soon taken over."""
    async with make_ring(background_lease_s=1.0) as running:
        yield running


async def begin(http: httpx.AsyncClient, **fields: Any) -> str:
    answer = await http.post(RESPONSES, json={**ASK, **fields})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    assert answer.json()["status"] == "queued"
    return str(answer.json()["id"])


async def get(http: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    answer = await http.get(f"{RESPONSES}/{response_id}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    Response.model_validate(body, strict=True)
    return body


async def until(http: httpx.AsyncClient, response_id: str, *statuses: str, text: str = "") -> dict[str, Any]:
    with anyio.fail_after(60):
        while True:
            body = await get(http, response_id)
            if body["status"] in (statuses or ((*OVER, "in_progress") if text else OVER)) and text_of(body).endswith(
                text
            ):
                return body
            await anyio.sleep(0.01)


async def events(http: httpx.AsyncClient, response_id: str, after: int | None = None) -> list[Event]:
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    answer = await http.get(f"{RESPONSES}/{response_id}", params=query)
    assert answer.status_code == 200, answer.text
    found = read(answer.text).events
    for event in found:
        EVENT.validate_python(event.json(), strict=True)
    return found


def text_of(response: dict[str, Any]) -> str:
    return "".join(p["text"] for item in response["output"] if item["type"] == "message" for p in item["content"])


def numbers(found: list[Event]) -> list[int]:
    return [event.json()["sequence_number"] for event in found]


def held(*texts: str) -> tuple[list[Piece], anyio.Event]:
    """Return pieces of which all but the first wait for an event."""
    go = anyio.Event()
    return [Piece(texts[0].encode()), *(Piece(text.encode(), after=go) for text in texts[1:])], go


async def test_it_is_answered_at_once_and_runs_to_its_end_without_a_client(ring: Ring) -> None:
    pieces, go = held("one ", "two ")
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *pieces)
    response_id = await begin(ring.http, metadata={"a": "b"})
    running = await until(ring.http, response_id, "in_progress", text="one ")
    assert [item["type"] for item in running["output"]] == ["reasoning", "message"]
    assert running["metadata"] == {"a": "b"} and running["usage"] is None
    go.set()
    done = await until(ring.http, response_id)
    assert (done["status"], text_of(done), done["background"]) == ("completed", "one two ", True)
    assert done["usage"]["output_tokens"] > 0
    more = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "more", "previous_response_id": response_id})
    assert more.status_code == 200


async def test_it_is_queued_until_it_has_a_place(ring: Ring) -> None:
    await ring.replica_loads()
    response_id = await begin(ring.http)
    assert (await get(ring.http, response_id))["status"] == "queued"
    ring.replica.state = "ready"
    await ring.replica.beat_once()
    assert (await until(ring.http, response_id))["status"] == "completed"


async def test_its_events_can_be_read_again_from_any_point_at_any_edge(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("one ", "two "))
    answer = await ring.http.post(RESPONSES, json={**ASK, "stream": True})
    first = read(answer.text).events
    assert numbers(first) == list(range(len(first)))
    assert [event.name for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
    response = first[-1].json()["response"]
    assert built(Stream(first, [])) == response["output"]
    async with ring.another_edge() as other:
        assert await events(other, response["id"]) == first
        for after in (0, 3, len(first) - 2):
            assert await events(other, response["id"], after) == first[after + 1 :]
        assert await events(other, response["id"], len(first) - 1) == []


@pytest.mark.parametrize("waits", ["on the bus", "and looks"])
async def test_a_reader_at_another_edge_follows_it_while_it_is_made(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    name, value = ("_LOOK_S", 3600.0) if waits == "on the bus" else ("_MOST_WAITING", 0)
    monkeypatch.setattr(f"gateway.edge.background.{name}", value)
    pieces, go = held("one ", "two ")
    ring.replica.play(*pieces)
    response_id = await begin(ring.http)
    async with (
        ring.another_edge() as other,
        other.stream("GET", f"{RESPONSES}/{response_id}?stream=true") as response,
    ):
        lines = response.aiter_lines()
        got: list[str] = []
        async for line in lines:
            got.append(line)
            if '"one "' in line:
                go.set()
    found = read("\n".join(got) + "\n").events
    assert found[-1].json()["response"]["status"] == "completed"
    assert numbers(found) == list(range(len(found)))


async def test_it_is_cancelled_as_often_as_one_likes_and_keeps_what_was_said(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    response_id = await begin(ring.http)
    await until(ring.http, response_id, text="one ")
    async with ring.another_edge() as other:
        for http in (other, ring.http, other):
            answer = await http.post(f"{RESPONSES}/{response_id}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
            Response.model_validate(answer.json(), strict=True)
            assert text_of(answer.json()) == "one "
    await ring.until_idle()
    stored = await get(ring.http, response_id)
    assert (stored["status"], text_of(stored), stored["error"]) == ("cancelled", "one ", None)
    assert (await events(ring.http, response_id))[-1].json()["response"]["status"] == "cancelled"


async def test_what_was_cancelled_is_over_when_its_client_is_told_so(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    response_id = await begin(ring.http)
    await until(ring.http, response_id, text="one ")
    answer = (await ring.http.post(f"{RESPONSES}/{response_id}/cancel")).json()
    assert answer == await get(ring.http, response_id)
    assert (answer["output"][0]["status"], answer["usage"]["output_tokens"]) == ("incomplete", 1)
    ring.replica.play(*say("two "))
    more = {"model": "tiny", "input": "go on", "previous_response_id": response_id}
    assert (await ring.http.post(RESPONSES, json=more)).status_code == 200


async def test_one_that_waits_for_a_replica_is_cancelled_and_never_placed(ring: Ring) -> None:
    await ring.replica_loads()
    response_id = await begin(ring.http)
    answer = await ring.http.post(f"{RESPONSES}/{response_id}/cancel")
    assert answer.json()["status"] == "cancelled"
    ring.replica.state = "ready"
    await ring.replica.beat_once()
    assert (await events(ring.http, response_id))[-1].name == "response.failed"
    assert (await get(ring.http, response_id))["status"] == "cancelled"
    assert ring.replica.requests == []


async def test_what_is_over_stays_as_it_is_when_it_is_cancelled(ring: Ring) -> None:
    response_id = await begin(ring.http)
    done = await until(ring.http, response_id)
    assert (await ring.http.post(f"{RESPONSES}/{response_id}/cancel")).json() == done
    plain = (await ring.http.post(RESPONSES, json={**ASK, "background": False})).json()
    refused = await ring.http.post(f"{RESPONSES}/{plain['id']}/cancel")
    assert refused.status_code == 400
    again = await ring.http.get(f"{RESPONSES}/{plain['id']}?stream=true")
    assert (again.status_code, again.json()["error"]["param"]) == (400, "stream")
    nowhere = await ring.http.post(f"{RESPONSES}/resp_{'0' * 40}/cancel")
    assert nowhere.status_code == 404


async def test_a_fault_is_a_failed_response(ring: Ring) -> None:
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    done = await until(ring.http, await begin(ring.http))
    assert (done["status"], done["error"]["message"]) == ("failed", "the engine failed")
    assert text_of(done) == "one "


async def test_the_deadline_ends_it_as_failed(pass_deadlines: Callable[[], None], ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    response_id = await begin(ring.http)
    await until(ring.http, response_id, text="one ")
    pass_deadlines()
    done = await until(ring.http, response_id)
    assert (done["status"], text_of(done)) == ("failed", "one ")
    assert "deadline" in done["error"]["message"]
    await ring.replica.cancelled()


async def test_deleting_one_that_is_made_stops_it_and_leaves_no_word_of_it(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    response_id = await begin(ring.http, input="SECRET question", instructions="SECRET")
    await until(ring.http, response_id, text="one ")
    assert (await ring.http.delete(f"{RESPONSES}/{response_id}")).json()["deleted"] is True
    await ring.replica.cancelled()
    await ring.until_idle()
    assert (await ring.http.get(f"{RESPONSES}/{response_id}")).status_code == 404
    await until_nothing_has(ring, b"SECRET")


async def test_the_edge_that_leaves_hands_it_over_in_mid_answer(short_of_lease: Ring) -> None:
    ring = short_of_lease
    pieces, go = held("one ", "two ", "x")
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *pieces)
    response_id = await begin(ring.http)
    await until(ring.http, response_id, text="one ")
    async with ring.another_edge() as other:
        before = [event async for event in _so_far(other, response_id, "one ")]
        await ring.stop_edge()
        go.set()
        done = await until(other, response_id)
        assert (done["status"], text_of(done)) == ("completed", "one two x")
        after = await events(other, response_id)
        assert after[: len(before)] == before
        assert numbers(after) == list(range(len(after)))
        assert built(Stream(after, [])) == done["output"]
    assert len(ring.replica.requests) == 1 and ring.replica.cancels == []


async def _so_far(http: httpx.AsyncClient, response_id: str, text: str) -> AsyncIterator[Event]:
    async with http.stream("GET", f"{RESPONSES}/{response_id}?stream=true") as response:
        lines = await lines_until(response, f'"{text}"')
    for event in read("\n".join(lines) + "\n\n").events:
        yield event


async def test_the_edge_that_is_killed_loses_nothing_of_it(short_of_lease: Ring) -> None:
    ring = short_of_lease
    pieces, go = held("one ", "two ", "x")
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *pieces)
    async with ring.edge_process() as (process, http):
        response_id = await begin(http)
        await until(http, response_id, text="one ")
        process.kill()
        process.wait()
    go.set()
    done = await until(ring.http, response_id)
    assert (done["status"], text_of(done)) == ("completed", "one two x")
    found = await events(ring.http, response_id)
    assert numbers(found) == list(range(len(found)))
    assert built(Stream(found, [])) == done["output"]
    assert len(ring.replica.requests) == 1


async def test_an_edge_that_was_thought_dead_writes_nothing_more(make_ring: MakeRing) -> None:
    async with make_ring(background_lease_s=60.0) as ring, ring.another_edge(background_lease_s=1.0) as other:
        pieces, go = held("one ", "two ")
        ring.replica.play(*pieces)
        response_id = await begin(ring.http)
        await until(ring.http, response_id, text="one ")
        key = topics.background(0)
        await ring.bus.route.call(key, "ZADD", key, 0, response_id)  # as if its promise had run out
        await ring.replica.until(lambda: ring.replica.requests[0].edge != ring.replica.requests[0].job.edge)
        await until(other, response_id, text="one ")
        old, stale = ring.replica.requests[0], say("x")
        await ring.bus.send(old.job.edge, ring.replica.batch([ring.replica.chunk(old, 0, 1, stale)]), maxlen=100)
        with anyio.fail_after(60):
            while await ring.metric("headrace_inflight_requests"):  # it tried to write, and let go
                await anyio.sleep(0.01)
        go.set()
        found = await events(other, response_id)
        assert text_of(found[-1].json()["response"]) == "one two "
        assert numbers(found) == list(range(len(found)))
        assert built(Stream(found, [])) == found[-1].json()["response"]["output"]
        assert ring.replica.cancels == []


async def test_what_cannot_be_written_now_is_written_later(
    short_of_lease: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = short_of_lease
    pieces, go = held("one ", "two ")
    ring.replica.play(*pieces)
    response_id = await begin(ring.http)
    await until(ring.http, response_id, text="one ")
    refused = anyio.Event()

    async def full(*_: Any, **__: Any) -> bool:
        refused.set()
        raise OverloadedError("the bus is out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "append", full)
        go.set()
        await refused.wait()
    done = await until(ring.http, response_id)
    assert (done["status"], text_of(done)) == ("completed", "one two ")
    assert ring.replica.cancels == []


def _request(response_id: str) -> Request:
    ref = ConversationRef(store=True, response_id=response_id)
    return Request(model="tiny", conversation=ref, reply={"id": response_id, "background": True})


async def test_an_edge_that_leaves_while_one_begins_says_so_and_leaves_no_promise(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_promised, real = anyio.Event(), Leases.take

    async def take(leases: Leases, response_id: str) -> None:
        await real(leases, response_id)
        has_promised.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(Leases, "take", take)
    async with anyio.create_task_group() as tasks:
        background = Background(cast(Admits, None), EdgeSettings(models=("tiny",)), bus, "edge", tasks)

        async def begin_one() -> None:
            with pytest.raises(UnavailableError, match="shutting down"):
                await background.start(_request("resp_0123456789abcdef01"), None)

        tasks.start_soon(begin_one)
        await has_promised.wait()
        background.hand_over()
    assert await bus.route.call(topics.background(0), "ZCARD", topics.background(0)) == 0


async def test_a_bus_that_fails_when_one_is_given_up_does_not_end_the_edge(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful:
        @asynccontextmanager
        async def resume(self, *_: Any, **__: Any) -> AsyncIterator[Generation]:
            raise NotFoundError("Nothing is known of this request any more.")
            yield

    async def away(*_: Any) -> None:
        raise UnavailableError("the message bus does not answer")

    async def take(_log: EventLog) -> tuple[int, int]:
        return 0, 0

    monkeypatch.setattr(Leases, "drop", away)
    monkeypatch.setattr(EventLog, "take", take)
    async with anyio.create_task_group() as tasks:
        background = Background(cast(Admits, Forgetful()), EdgeSettings(models=("tiny",)), bus, "edge", tasks)
        tasks.start_soon(background._take_over, "resp_0123456789abcdef01")
    assert "could not be taken over" in caplog.text


async def test_wrong_questions_are_refused_by_name(ring: Ring) -> None:
    response_id = await begin(ring.http)
    await until(ring.http, response_id)
    for query, param in (
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=x", "starting_after"),
        ("starting_after=1", "starting_after"),
        ("include=nonsense", "include[0]"),
    ):
        answer = await ring.http.get(f"{RESPONSES}/{response_id}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_openais_client_polls_streams_resumes_and_cancels(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    async with ring.openai() as client:
        begun = await client.responses.create(model="tiny", input="hi", background=True)
        assert begun.status == "queued"
        await until(ring.http, begun.id)
        assert (await client.responses.retrieve(begun.id)).output_text == "one two "
        stream = await client.responses.create(model="tiny", input="hi", background=True, stream=True)
        found = [event async for event in stream]
        response_id = found[0].response.id
        again = await client.responses.retrieve(response_id, stream=True, starting_after=3)
        assert [event.sequence_number async for event in again] == [event.sequence_number for event in found[4:]]
        assert (await client.responses.cancel(response_id)).status == "completed"
        await client.responses.delete(response_id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response_id, stream=True)

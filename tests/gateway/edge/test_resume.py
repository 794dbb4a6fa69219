"""A stream that a client has lost goes on where it was cut, at any edge, without a seam."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from gateway.edge.places import parse_place
from tests.gateway.edge.asks import ASK, CHAT, opened
from tests.gateway.edge.sse import Stream, read
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from wire.errors import InternalError
from wire.messages import Resubscribe

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {**ASK, "stream": True, "stream_options": {"resumable": True, "include_usage": True}}
TOLD = [*tag("<think>"), *think("hidden ", "thought"), *tag("</think>"), *say("one ", "two ", "hello", " world")]

STOPPED = {"stop": ["two", "orl"], "min_tokens": 6}  # the first comes with the sixth token, the other behind it


def ids(raw: str) -> list[str]:
    return [line.removeprefix("id: ") for line in raw.split("\n") if line.startswith("id: ")]


def told(stream: Stream) -> tuple[str, str]:
    return stream.text(), stream.text(name="reasoning_content")


def num_logprobs(stream: Stream) -> int:
    choices = [choice for chunk in stream.chunks for choice in chunk["choices"]]
    return sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"])


async def ask(http: httpx.AsyncClient, last: str = "", **fields: Any) -> str:
    headers = {"Last-Event-ID": last} if last else {}
    answer = await http.post(CHAT, json={**BODY, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


async def lose(ring: Ring, text: str, **fields: Any) -> str:
    """Read a stream up to a text and lose the connection; returns what came."""
    got = ""
    async with opened(ring, CHAT, **{**BODY, **fields}) as response:
        async for part in response.aiter_text():
            got += part
            if text in got:
                break
    return got[: got.rindex("\n\n") + 2]


async def test_every_event_but_the_end_mark_has_an_id_if_that_is_asked_for(ring: Ring) -> None:
    ring.replica.play(*TOLD)
    raw = await ask(ring.http)
    stream = read(raw)
    assert [event.fields[0] for event in stream.events[:-1]] == ["id"] * (len(stream.events) - 1)
    assert len(set(ids(raw))) == len(ids(raw)) == len(stream.events) - 1
    plain = (await ring.http.post(CHAT, json={**ASK, "stream": True})).text
    assert ids(plain) == []


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 1}, STOPPED])
async def test_from_every_event_on_the_rest_is_exactly_what_was_missing(ring: Ring, fields: dict[str, Any]) -> None:
    ring.replica.play(*TOLD)
    raw = await ask(ring.http, **fields)
    whole = read(raw)
    assert whole.text() == ("one two hello w" if fields == STOPPED else "one two hello world")
    for last in ids(raw):
        rest = read(await ask(ring.http, last, **fields))
        before = read(raw[: raw.index("\n\n", raw.index(f"id: {last}\n")) + 2])
        assert rest.events[-1].data == "[DONE]"
        for index in range(fields.get("n", 1)):
            for name in ("content", "reasoning_content"):
                assert before.text(index, name) + rest.text(index, name) == whole.text(index, name), last
            assert (before.finish_reason(index), rest.finish_reason(index)) in ((None, "stop"), ("stop", None))
        assert num_logprobs(before) + num_logprobs(rest) == num_logprobs(whole)
        assert {chunk["id"] for s in (before, rest) for chunk in s.chunks} == {whole.chunks[0]["id"]}
        usages = [chunk["usage"] for s in (before, rest) for chunk in s.chunks if chunk.get("usage")]
        assert len(usages) == 1


async def test_a_client_that_lost_its_connection_goes_on_at_another_edge(ring: Ring) -> None:
    go = anyio.Event()
    ring.replica.play(*TOLD[:5], *[Piece(piece.raw, after=go) for piece in TOLD[5:]])
    before = await lose(ring, '"one "')
    async with ring.another_edge() as other, anyio.create_task_group() as tasks:
        rest: list[str] = []

        async def come_back() -> None:
            rest.append(await ask(other, ids(before)[-1]))

        tasks.start_soon(come_back)
        await ring.replica.until(lambda: ring.replica.requests[0].edge != ring.replica.requests[0].job.edge)
        go.set()
        with anyio.fail_after(60):
            while not rest:
                await anyio.sleep(0.01)
    first, second = read(before), read(rest[0])
    assert first.text() + second.text() == "one two hello world"
    assert first.text(name="reasoning_content") + second.text(name="reasoning_content") == "hidden thought"
    assert len(ring.replica.requests) == 1 and ring.replica.cancels == []


async def test_an_edge_that_is_killed_takes_no_token_with_it(ring: Ring) -> None:
    go = anyio.Event()
    ring.replica.play(*TOLD[:5], *[Piece(piece.raw, after=go) for piece in TOLD[5:]])
    got = ""
    async with ring.edge_process() as (process, http):
        with pytest.raises(httpx.RemoteProtocolError):
            async with http.stream("POST", CHAT, json=BODY) as response:
                async for part in response.aiter_text():
                    got += part
                    if '"one "' in got:
                        process.kill()
    process.wait()
    go.set()
    first, second = read(got), read(await ask(ring.http, ids(got)[-1]))
    assert first.text() + second.text() == "one two hello world"
    assert told(second)[1] == ""


async def test_it_may_come_back_after_the_end_and_to_the_same_edge(ring: Ring) -> None:
    ring.replica.play(*TOLD)
    before = await lose(ring, '"one "')
    await ring.replica.until(lambda: not ring.replica.running)
    for _ in range(2):
        assert read(before).text() + read(await ask(ring.http, ids(before)[-1])).text() == "one two hello world"


async def test_whoever_comes_back_first_has_the_stream_the_old_connection_ends(ring: Ring) -> None:
    go = anyio.Event()
    ring.replica.play(*TOLD[:5], *[Piece(piece.raw, after=go) for piece in TOLD[5:]])
    async with opened(ring, CHAT, **BODY) as old:
        got = ""
        async for part in old.aiter_text():
            got += part
            if '"one "' in got and not go.is_set():
                async with anyio.create_task_group() as tasks:

                    async def come_back(last: str) -> None:
                        assert read(await ask(ring.http, last)).text() == "two hello world"

                    tasks.start_soon(come_back, ids(got)[-1])
                    await ring.replica.until(lambda: any(isinstance(one, Resubscribe) for one in ring.replica.control))
                    go.set()
        assert "taken this answer over" in got
    assert ring.replica.cancels == []


async def test_nobody_comes_back_and_the_work_ends(make_ring: MakeRing) -> None:
    async with make_ring(resume_wait_s=0.2) as ring:
        ring.replica.play(*say("one "), finish=None)
        await lose(ring, '"one "')
        assert ring.replica.cancels == []
        await ring.replica.cancelled()
        await ring.until_idle()
        assert await ring.metric("headrace_requests_total") == 1


async def test_a_place_that_is_none_is_refused(ring: Ring) -> None:
    ring.replica.play(*TOLD)
    raw = await ask(ring.http)
    last = ids(raw)[-1]
    place = parse_place(last)
    assert str(place) == last
    for wrong, status in (
        ("nonsense", 400),
        (last.replace(place.request_id, "0" * 32), 404),
        (last.removesuffix("fu") + "f_0-0-0-0-0", 404),
    ):
        answer = await ring.http.post(CHAT, json=BODY, headers={"Last-Event-ID": wrong})
        assert answer.status_code == status, answer.text


async def test_a_fault_in_the_rest_is_told_as_ever(ring: Ring) -> None:
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    raw = await ask(ring.http)
    assert read(raw).chunks[-1]["error"]["message"] == "the engine failed"
    answer = await ring.http.post(CHAT, json=BODY, headers={"Last-Event-ID": ids(raw)[-1]})
    assert answer.status_code == 500


async def test_comments_in_a_stream_with_ids_never_make_an_empty_event(make_ring: MakeRing) -> None:
    async with make_ring(keep_alive_s=0.05) as ring:
        go = anyio.Event()
        ring.replica.play(*say("one "), Piece(b"two ", after=go))
        async with ring.openai() as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=ASK["messages"], stream=True, extra_body={"stream_options": {"resumable": True}}
            )
            texts: list[str] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_after_a_comment, ring, go)
                async for chunk in stream:
                    texts += [choice.delta.content or "" for choice in chunk.choices]
            assert "".join(texts) == "one two "


async def _after_a_comment(ring: Ring, go: anyio.Event) -> None:
    """Let the answer go on once a second stream, opened later, has had its comment."""
    async with opened(ring, CHAT, **BODY) as response:
        async for part in response.aiter_text():
            if ": keep-alive\n" in part:
                break
    go.set()

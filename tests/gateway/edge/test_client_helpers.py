"""What OpenAI's client builds on top of the routes: classes in and out, streams that gather, raw headers, retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI

from tests.gateway.edge.asks import ASK, CHAT
from tests.ring import MakeRing, Ring
from tests.script import Script, say, tag, think

pytestmark = pytest.mark.anyio

BASE: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CALL = '<tool_call>\n{"name": "Point", "arguments": {"x": 1, "y": 2}}\n</tool_call>'
POINT = '{"x": 1, "y": 2}'


class Point(pydantic.BaseModel):
    """A place."""

    x: int
    y: int


TOOL: Any = openai.pydantic_function_tool(Point)


@pytest.fixture
async def client(ring: Ring) -> AsyncIterator[AsyncOpenAI]:
    async with ring.openai() as opened:
        yield opened


async def test_calls_are_parsed_into_the_class_of_their_function(ring: Ring, client: Any) -> None:
    ring.replica.play(*say(*f"so {CALL}"))
    whole = await client.chat.completions.parse(**BASE, tools=[TOOL])
    async with client.chat.completions.stream(**BASE, tools=[TOOL], stream_options={"include_usage": True}) as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("so", "tool_calls")
        assert [call.function.parsed_arguments for call in choice.message.tool_calls or ()] == [Point(x=1, y=2)]
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens == len(f"so {CALL}") + 1
    (done,) = (event for event in events if event.type == "tool_calls.function.arguments.done")
    assert (done.name, done.arguments, done.parsed_arguments) == ("Point", POINT, Point(x=1, y=2))
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == POINT


async def test_the_stream_helper_gathers_each_choice_with_its_log_probabilities(ring: Ring, client: Any) -> None:
    ring.replica.script = Script(choices={0: say("hello"), 1: say("one ", "two ")})
    async with client.chat.completions.stream(**BASE, logprobs=True, top_logprobs=1, n=2) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("logprobs.content.done") == 2
    tokens = [[entry.token for entry in choice.logprobs.content] for choice in final.choices]
    assert tokens == [["hello"], ["one ", "two "]]


async def test_an_answer_that_was_cut_is_not_parsed(ring: Ring, client: Any) -> None:
    ring.replica.play(*say(*'{"x": 1'), finish="length")
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        await client.chat.completions.parse(**BASE, response_format=Point)
    assert cut.value.completion.choices[0].message.content == '{"x": 1'


async def test_responses_are_parsed_into_a_class_streamed_and_whole(ring: Ring, client: Any) -> None:
    ring.replica.play(*say(*POINT))
    whole = await client.responses.parse(model="tiny", input="hi", text_format=Point)
    async with client.responses.stream(model="tiny", input="hi", text_format=Point) as stream:
        (done,) = [event async for event in stream if event.type == "response.output_text.done"]
        streamed = await stream.get_final_response()
    assert whole.output_parsed == streamed.output_parsed == done.parsed == Point(x=1, y=2)


async def test_calls_of_responses_are_parsed_behind_their_reasoning(ring: Ring, client: Any) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say(*CALL))
    whole = await client.responses.parse(model="tiny", input="hi", tools=[TOOL])
    async with client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream:
        deltas = [event async for event in stream if event.type == "response.function_call_arguments.delta"]
        streamed = await stream.get_final_response()
    assert "".join(event.delta for event in deltas) == deltas[-1].snapshot == POINT
    for answer in (whole, streamed):
        assert [item.type for item in answer.output] == ["reasoning", "function_call"]
        assert answer.output[-1].parsed_arguments == Point(x=1, y=2)


async def test_the_beta_paths_of_the_client_are_the_same_routes(ring: Ring, client: Any) -> None:
    ring.replica.play(*say(*POINT))
    answer = await client.beta.chat.completions.parse(**BASE, response_format=Point)
    assert answer.choices[0].message.parsed == Point(x=1, y=2)
    first = await client.beta.responses.create(model="tiny", input="hi")
    assert (await client.beta.responses.retrieve(first.id)).id == first.id
    await client.beta.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.beta.responses.retrieve(first.id)


async def test_the_id_of_a_request_is_at_hand_in_answers_streams_and_errors(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello"))
    raw = await client.chat.completions.with_raw_response.create(**BASE, extra_headers={"X-Request-Id": "mine"})
    assert raw.headers["x-request-id"] == raw.request_id == raw.parse()._request_id == "mine"
    async with client.responses.with_streaming_response.create(model="tiny", input="hi", stream=True) as response:
        assert response.request_id and response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.iter_lines()]
    assert "event: response.completed" in lines
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**BASE, temperature=9, extra_headers={"X-Request-Id": "wrong"})
    assert refused.value.request_id == "wrong"


class Waiting(AsyncOpenAI):
    """Does something instead of waiting before it asks again, and notes how long it would have waited."""

    meanwhile: Any
    waits: list[float]

    async def _sleep_for_retry(self, *, retries_taken: int, max_retries: int, options: Any, response: Any) -> None:
        self.waits.append(self._calculate_retry_timeout(max_retries - retries_taken, options, response.headers))
        await self.meanwhile()


async def test_a_full_server_is_asked_again_when_it_says(make_ring: MakeRing) -> None:
    async with make_ring(max_inflight=1) as ring, AsyncExitStack() as holding:
        ring.replica.play(*say("one "), finish=None)
        await holding.enter_async_context(ring.http.stream("POST", CHAT, json={**ASK, "stream": True}))

        async def leave() -> None:
            await holding.aclose()
            await ring.until_idle()
            ring.replica.play(*say("hello"))

        async with Waiting(base_url=f"{ring.url}/v1", api_key="none", max_retries=1) as client:
            client.meanwhile, client.waits = leave, []
            raw = await client.chat.completions.with_raw_response.create(**BASE)
        assert raw.retries_taken == 1 and raw.parse().choices[0].message.content == "hello"
        assert len(client.waits) == 1 and 1 <= client.waits[0] <= 60 and client.waits[0] == int(client.waits[0])


async def test_clients_that_leave_long_streams_leave_nothing_behind(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("one ", "two ") * 900, finish=None)  # fewer than may come: no answer ends by itself
    for shown in (1, 900):
        async with await client.chat.completions.create(**BASE, max_tokens=1_900, stream=True) as stream:
            pieces = 0
            async for chunk in stream:
                pieces += len((chunk.choices[0].delta.content or "").split())
                if pieces >= shown:
                    break
        await ring.until_idle()  # what is not cancelled never is
    assert len({(cancel.request_id, cancel.choice) for cancel in ring.replica.cancels}) == 2

"""OpenAI's own Python client reads everything we send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.ring import Ring
from tests.script import Script, say, tag, think
from wire.errors import InternalError

pytestmark = pytest.mark.anyio

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(ring: Ring) -> AsyncIterator[AsyncOpenAI]:
    async with ring.openai() as opened:
        yield opened


async def test_chat_whole_and_streamed_with_usage_and_log_probabilities(ring: Ring, client: Any) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello", " world"))
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2, reasoning_effort="low"
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("hello world", "stop")
    assert choice.message.reasoning_content == "hidden "
    assert answer.usage.completion_tokens_details.reasoning_tokens == 1
    assert choice.logprobs.content[0].bytes == list(b"hello")
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    for index in (0, 1):
        deltas = [c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index]
        assert "".join(deltas) == "hello world"
    assert chunks[-1].usage.completion_tokens == 2 * answer.usage.completion_tokens


async def test_the_streaming_helper_accumulates_a_completion(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello", " world"))
    async with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == "hello world"


async def test_responses_whole_streamed_read_continued_and_deleted(ring: Ring, client: Any) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say("hello", " world"))
    first = await client.responses.create(model="tiny", input="hi", instructions="be brief")
    assert first.output_text == "hello world"
    assert [item.type for item in first.output] == ["reasoning", "message"]
    async with client.responses.stream(model="tiny", input="more", previous_response_id=first.id) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert {"response.output_text.delta", "response.reasoning_text.delta"} <= set(kinds)
    assert final.output_text == "hello world"
    assert final.usage.output_tokens_details.reasoning_tokens == 1
    read = await client.responses.retrieve(first.id)
    assert read.output_text == "hello world"
    items = await client.responses.input_items.list(first.id)
    assert items.data[0].content[0].text == "hi"
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


async def test_a_conversation_is_created_continued_changed_and_deleted(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("hello"))
    item = {"type": "message", "role": "user", "content": "earlier"}
    conversation = await client.conversations.create(metadata={"title": "t"}, items=[item])
    await client.responses.create(model="tiny", input="hi", conversation=conversation.id)
    items = await client.conversations.items.list(conversation.id, order="asc", limit=2)
    texts = [part.text async for item in items for part in item.content]
    assert texts == ["earlier", "hi", "hello"]
    changed = await client.conversations.update(conversation.id, metadata={"title": "new"})
    assert changed.metadata["title"] == "new"
    assert (await client.conversations.retrieve(conversation.id)).metadata["title"] == "new"
    assert (await client.conversations.delete(conversation.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(conversation.id)


async def test_chat_by_every_method_of_the_blocking_client(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))

    def ask(client: OpenAI) -> list[str | None]:
        chat = client.chat.completions
        whole = chat.create(model="tiny", messages=MESSAGES)
        pieces = chat.create(model="tiny", messages=MESSAGES, stream=True)
        with chat.stream(model="tiny", messages=MESSAGES) as stream:
            final = stream.get_final_completion()
        raw = chat.with_raw_response.create(model="tiny", messages=MESSAGES)
        assert raw.headers["server-timing"]
        with chat.with_streaming_response.create(model="tiny", messages=MESSAGES) as response:
            later = response.parse()
        assert [model.id for model in client.models.list()] == ["tiny"]
        joined = "".join(piece.choices[0].delta.content or "" for piece in cast(Any, pieces))
        whole_ones = [one.choices[0].message.content for one in (whole, final, raw.parse(), later)]
        return [joined, *whole_ones]

    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0) as client:
        assert await anyio.to_thread.run_sync(ask, client) == ["hello world"] * 5


async def test_an_answer_is_parsed_into_a_class(ring: Ring, client: Any) -> None:
    class Point(pydantic.BaseModel):
        x: int
        y: int

    ring.replica.play(*say(*'{"x": 1, "y": 2}'))
    answer = await client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Point)
    assert answer.choices[0].message.parsed == Point(x=1, y=2)
    async with client.chat.completions.stream(model="tiny", messages=MESSAGES, response_format=Point) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == Point(x=1, y=2)


async def test_models_are_listed_and_an_unknown_one_is_not_found(client: Any) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    model = await client.models.retrieve("tiny")
    assert (model.owned_by, model.context_length, model.max_model_len) == ("headrace", 2048, 2048)
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        await client.models.retrieve("gpt-9")


async def test_a_model_says_how_much_its_replicas_hold_where_that_is_less(ring: Ring, client: Any) -> None:
    ring.replica.max_model_len = 512
    with anyio.fail_after(60):
        while (await client.models.retrieve("tiny")).context_length != 512:
            await anyio.sleep(0.01)
    assert [model.max_model_len async for model in client.models.list()] == [512]


async def test_errors_are_the_clients_own_classes(ring: Ring, client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="other", messages=MESSAGES)
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="the engine failed"):
        async for _ in stream:
            pass


async def test_leaving_a_stream_early_cancels(ring: Ring, client: Any) -> None:
    ring.replica.play(*say("one "), finish=None)
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content == "one ":
            break
    await stream.close()
    await ring.replica.cancelled()
    await ring.until_idle()


async def test_openais_client_reads_completions(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))
    async with ring.openai() as client:
        answer = await client.completions.create(model="tiny", prompt=["ab", "c"], echo=True, logprobs=1)
        assert [choice.text for choice in answer.choices] == ["abhello world", "chello world"]
        assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.tokens[:2] == ["a", "b"]
        stream = await client.completions.create(model="tiny", prompt="ab", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "hello world"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="tiny", prompt="ab", suffix="end")
        assert refused.value.param == "suffix"


async def test_openais_blocking_client_reads_completions(ring: Ring) -> None:
    ring.replica.play(*say("hello", " world"))

    def ask(client: OpenAI) -> list[str]:
        whole = client.completions.create(model="tiny", prompt=[97, 98])
        stream = client.completions.create(model="tiny", prompt="ab", stream=True)
        return [whole.choices[0].text, "".join(chunk.choices[0].text for chunk in stream)]

    with OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0) as client:
        assert await anyio.to_thread.run_sync(ask, client) == ["hello world", "hello world"]

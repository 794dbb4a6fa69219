"""POST /v1/completions with `echo`: the prompt comes back, with its log probabilities if they are wanted."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from tests.gateway.edge.test_completions import columns, joined, post, streamed
from tests.ring import Ring
from tests.script import Piece, Script, say
from wire.messages import TokenChunk, TokenLogprob

pytestmark = pytest.mark.anyio


async def test_echo_with_no_tokens_returns_the_prompt_alone(ring: Ring) -> None:
    answer = await post(ring, max_tokens=0, echo=True)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("ab", "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == 2
    assert joined(await streamed(ring, max_tokens=0, echo=True)) == ("ab", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_shows_the_log_probabilities_of_the_prompt_too(ring: Ring, stream: bool) -> None:
    ring.replica.play(*say("one "))
    fields: dict[str, Any] = {"prompt": ["ab", "abc"], "n": 2, "echo": True, "logprobs": 1}
    if stream:
        chunks = await streamed(ring, **fields)
        texts = [joined(chunks, at)[0] for at in range(4)]
        found = [columns(chunks, at) for at in range(4)]
    else:
        answer = await post(ring, **fields)
        texts = [choice["text"] for choice in answer["choices"]]
        found = [choice["logprobs"] for choice in answer["choices"]]
    assert texts == ["abone ", "abone ", "abcone ", "abcone "]
    for at in (0, 1):
        assert found[at]["tokens"] == ["a", "b", "one "]
        assert found[at]["token_logprobs"] == [None, -1.0, -0.25]
        assert found[at]["top_logprobs"] == [None, {"b": -1.0}, {"one ": -0.25}]
        assert found[at]["text_offset"] == [0, 1, 2]
    assert found[2]["token_logprobs"] == [None, -1.0, -2.0, -0.25]


@pytest.mark.parametrize("told", [True, False])
async def test_a_choice_that_ends_before_the_first_one_begins_waits_for_what_that_tells(ring: Ring, told: bool) -> None:
    go = anyio.Event()
    ring.replica.script = Script(choices={0: [Piece(b"one ", after=go)], 1: say("two ")})

    def seen(chunk: TokenChunk) -> list[TokenChunk]:
        if (chunk.choice, chunk.finish_reason is not None) == (1, True):
            go.set()
        return [chunk if told else msgspec.structs.replace(chunk, prompt_logprobs=())]

    ring.replica.transform = seen
    chunks = await streamed(ring, prompt="ab", n=2, echo=True, logprobs=1)
    prompt = ["a", "b"] if told else []
    for at, word in enumerate(("one ", "two ")):
        assert joined(chunks, at) == (f"ab{word}", "stop")
        assert columns(chunks, at)["tokens"] == [*prompt, word]


@pytest.mark.parametrize("prompt", ["a", [97]])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_of_one_token_is_shown_like_any_other(ring: Ring, prompt: Any, stream: bool) -> None:
    ring.replica.play(*say("one ", "two "))
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "n": 2}
    for more, text, places in (({}, "aone two ", [0, 1, 5]), ({"max_tokens": 0}, "a", [0])):
        if stream:
            chunks = await streamed(ring, **fields, **more)
            texts, found = [joined(chunks, at)[0] for at in (0, 1)], [columns(chunks, at) for at in (0, 1)]
        else:
            answer = await post(ring, **fields, **more)
            texts = [choice["text"] for choice in answer["choices"]]
            found = [choice["logprobs"] for choice in answer["choices"]]
        assert texts == [text, text]
        for one in found:
            assert one["text_offset"] == places
            assert one["tokens"] == ["a", "one ", "two "][: len(places)]
            assert one["token_logprobs"] == [None, -0.25, -0.25][: len(places)]
    if not stream:
        answer = await post(ring, prompt=prompt, prompt_logprobs=2)
        assert answer["choices"][0]["prompt_logprobs"] == [None]


async def test_a_stream_of_an_echoed_token_does_not_wait_for_the_end(ring: Ring) -> None:
    go = anyio.Event()
    ring.replica.play(*say("one "), Piece(b"two ", after=go))
    body = {"model": "tiny", "prompt": "a", "echo": True, "logprobs": 1, "stream": True}
    async with ring.http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if "one " in line:
                go.set()
    assert go.is_set()


async def test_a_prompt_that_another_attempt_tells_again_is_echoed_once(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    told: list[tuple[TokenLogprob, ...]] = []

    def again(chunk: TokenChunk) -> list[TokenChunk]:
        told.append(chunk.prompt_logprobs)
        return [msgspec.structs.replace(chunk, prompt_logprobs=told[0])]

    ring.replica.transform = again
    got = columns(await streamed(ring, prompt="ab", echo=True, logprobs=1))
    assert got["tokens"] == ["a", "b", "one ", "two "]
    assert len(told) > 1

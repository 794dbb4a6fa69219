"""POST /v1/completions: every form of prompt, echo, log probabilities, several prompts in one answer."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import msgspec
import pytest

from gateway.edge.schema.legacy_logprobs import LogprobColumns
from gateway.postprocess.logprobs import LogprobEntry
from tests.gateway.edge.asks import lines_until, still_serves
from tests.gateway.edge.sse import read
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say
from wire.errors import InternalError
from wire.messages import Request, TokenLogprob, unpack_ids

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
ASK: dict[str, Any] = {"model": "tiny", "prompt": "ab"}


async def post(ring: Ring, status: int = 200, **fields: Any) -> dict[str, Any]:
    response = await ring.http.post(PATH, json={**ASK, **fields})
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(ring: Ring, **fields: Any) -> list[dict[str, Any]]:
    response = await ring.http.post(PATH, json={**ASK, **fields, "stream": True})
    assert response.status_code == 200, response.text
    stream = read(response.text)
    assert stream.events[-1].data == "[DONE]"
    return stream.chunks


def joined(chunks: list[dict[str, Any]], index: int = 0) -> tuple[str, str | None]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    return "".join(choice["text"] for choice in choices), reasons[0]


def columns(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        for name, column in (choice["logprobs"] or {}).items():
            found.setdefault(name, []).extend(column)
    return found


def echo_prompt(request: Request) -> Script:
    """Answer the prompts `1`, `2` and `3` each with its own word."""
    words = {"1": "one ", "2": "two ", "3": "three "}
    return Script(say(words[request.prompt_text]))


async def test_a_text_is_continued_streamed_and_whole(ring: Ring) -> None:
    ring.replica.play(*say(" world", " fine"))
    answer = await post(ring)
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    assert answer["choices"] == [{"index": 0, "text": " world fine", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["prompt_tokens"] == 2
    chunks = await streamed(ring)
    assert joined(chunks) == (" world fine", "stop")
    assert all("usage" not in chunk for chunk in chunks)
    request = ring.replica.requests[-1].request
    assert (request.kind, request.prompt_text, request.sampling.max_tokens) == ("text", "ab", 16)


async def test_token_ids_go_to_the_replica_as_they_are(ring: Ring) -> None:
    await post(ring, prompt=[97, 98, 99])
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None and unpack_ids(prompt.token_ids) == [97, 98, 99]
    answer = await post(ring, prompt=[[97], [98, 99]], echo=True)
    texts = [choice["text"] for choice in answer["choices"]]
    vocabulary = ring.replica.vocabulary
    assert texts == [vocabulary.decode_bytes(ids).decode("utf-8", "replace") + "hello" for ids in ([97], [98, 99])]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_choices_of_one_answer_in_their_order(ring: Ring, stream: bool) -> None:
    ring.replica.script = echo_prompt
    fields: dict[str, Any] = {"prompt": ["1", "2", "3"], "n": 2}
    if stream:
        chunks = await streamed(ring, **fields, stream_options={"include_usage": True})
        texts = [joined(chunks, index)[0] for index in range(6)]
        usage = chunks[-1]["usage"]
        assert len({chunk["id"] for chunk in chunks}) == 1
    else:
        answer = await post(ring, **fields)
        texts = [choice["text"] for choice in answer["choices"]]
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        usage = answer["usage"]
    assert texts == ["one ", "one ", "two ", "two ", "three ", "three "]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 12)
    ring.replica.play(*say("hello"))
    await still_serves(ring)


async def test_whoever_leaves_ends_the_requests_of_all_prompts(ring: Ring) -> None:
    ring.replica.play(*say("one "), finish=None)
    body = {**ASK, "prompt": ["1", "2", "3"], "stream": True}
    async with (
        httpx.AsyncClient(base_url=ring.url, timeout=60.0, trust_env=False, verify=False) as http,
        http.stream("POST", PATH, json=body) as response,
    ):
        await lines_until(response, "one ")
    await ring.replica.cancelled(3)
    assert len({message.request_id for message in ring.replica.cancels}) == 3
    await ring.until_idle()


async def test_the_failure_of_one_prompt_is_that_of_the_answer_and_ends_the_others(ring: Ring) -> None:
    all_there = anyio.Event()  # one that fails before another is placed leaves nothing to cancel there

    def script(request: Request) -> Script:
        if len(ring.replica.requests) == 2:  # and this is the third
            all_there.set()
        if request.prompt_text == "2":
            return Script(error=InternalError("the engine failed"), before_end=all_there)
        return Script(say("one "), finish=None)

    ring.replica.script = script
    error = (await post(ring, status=500, prompt=["1", "2", "3"]))["error"]
    assert error["code"] == "internal_error"
    await ring.replica.cancelled(2)
    ring.replica.play(*say("hello"))
    await still_serves(ring)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_prompt_among_others_is_refused_by_its_place_in_both_modes(ring: Ring, stream: bool) -> None:
    for prompt, param in ((["a", ""], "prompt[1]"), ([[97], []], "prompt[1]"), ("", "prompt"), ([""], "prompt")):
        error = (await post(ring, status=400, prompt=prompt, stream=stream))["error"]
        assert error["param"] == param
    await still_serves(ring)


async def test_a_stream_begins_when_every_prompt_has_begun_so_that_a_failure_is_a_true_status(ring: Ring) -> None:
    go = anyio.Event()

    def script(request: Request) -> Script:
        if request.prompt_text == "2":
            return Script(error=InternalError("the engine failed"), before_end=go)
        return Script(say("one "), finish=None)

    ring.replica.script = script
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            await post(ring, status=500, prompt=["1", "2"], stream=True)

        tasks.start_soon(ask)
        for _ in range(200):  # tokens of the first prompt lie at the edge, untaken
            if await ring.metric("headrace_pending_tokens"):
                break
        go.set()
    await ring.until_idle()


async def test_more_prompts_than_slots_are_refused_as_a_whole(make_ring: MakeRing) -> None:
    async with make_ring(max_inflight=4) as ring:
        error = (await post(ring, status=400, prompt=["a"] * 5))["error"]
        assert error["param"] == "prompt"
        go = anyio.Event()
        ring.replica.play(Piece(b"one ", after=go))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, ring)
            await ring.replica.until(lambda: len(ring.replica.requests) == 1)
            assert (await post(ring, status=429, prompt=["a"] * 4))["error"]["code"] == "overloaded"
            go.set()
        assert len(ring.replica.requests) == 1


async def test_ids_over_the_context_are_refused_by_their_prompts_place_before_they_are_on_the_ring(ring: Ring) -> None:
    for prompt, param in (([97] * 1_000_000, "prompt"), ([[97], [97] * 2048], "prompt[1]")):
        error = (await post(ring, status=400, prompt=prompt))["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert f"; {param}: " in error["message"], "the edge itself refuses them"
    assert ring.replica.requests == []
    await still_serves(ring)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("suffix", {"suffix": "end"}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": ["a", 1]}),
    ("prompt", {"prompt": [1, [2]]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [10**9]}),
    ("prompt", {"prompt": [2**40]}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": {"a": 1}}),
    ("prompt", {"prompt": ["a"] * 65}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": True}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("n", {"n": 0}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
]


async def test_wrong_values_are_refused_by_name(ring: Ring) -> None:
    for param, fields in WRONG:
        error = (await post(ring, status=400, **fields))["error"]
        assert (error["param"] or "").split("[")[0] == param, fields
    assert ring.replica.requests == []
    await post(ring, suffix="", max_tokens=None, logprobs=None)


async def test_either_token_limit_holds_and_the_smaller_of_both(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two ", "three "))
    limits = {"max_tokens": 1}, {"max_completion_tokens": 1}, {"max_tokens": 3, "max_completion_tokens": 1}
    for fields in limits:
        choice = (await post(ring, **fields))["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("one ", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_columns_with_the_place_of_each_token(ring: Ring, stream: bool) -> None:
    ring.replica.play(*say(b"\xf0\x9f", b"\x98\x80", "one "))
    fields = {"logprobs": 2}
    got = columns(await streamed(ring, **fields)) if stream else (await post(ring, **fields))["choices"][0]["logprobs"]
    assert got["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "one "]
    assert got["text_offset"] == [0, 0, 1]
    assert got["token_logprobs"] == [-0.25] * 3
    assert got["top_logprobs"][2]["one "] == -0.25 and len(got["top_logprobs"][2]) == 2


def test_a_token_behind_a_character_that_never_ends_stands_behind_its_replacement() -> None:
    raws = (b"a", b"\xe1\xb9", b"b", b"\xf0\x9f", b"\x98\x80", b"", b"c")
    entries = [LogprobEntry(token="", logprob=-1.0, raw=raw) for raw in raws]
    text = b"".join(raws).decode("utf-8", "replace")
    assert text == "a\ufffdb\U0001f600c"
    assert LogprobColumns().take(entries)["text_offset"] == [0, 1, 2, 3, 3, 4, 4]


async def test_of_more_choices_the_likeliest_are_shown_and_all_are_billed(ring: Ring) -> None:
    likely, other = say("one ", "two "), say("hello")
    ring.replica.script = Script(choices={0: other, 1: likely, 2: other, 3: likely})
    ring.replica.transform = lambda chunk: [
        msgspec.structs.replace(
            chunk, logprobs=tuple(TokenLogprob(-0.1 * (2 - chunk.choice % 2)) for _ in chunk.logprobs)
        )
    ]
    answer = await post(ring, n=2, best_of=4)
    assert [(choice["index"], choice["text"], choice["logprobs"]) for choice in answer["choices"]] == [
        (0, "one two ", None),
        (1, "one two ", None),
    ]
    assert answer["usage"]["completion_tokens"] == 2 * 2 + 2 * 3
    assert (await post(ring, n=2, best_of=2, prompt=["a", "b"]))["choices"][3]["index"] == 3
    for fields in ({"best_of": 0}, {"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 99}):
        assert (await post(ring, status=400, **fields))["error"]["param"] == "best_of"


async def test_prompt_log_probabilities_come_in_vllms_shape_when_asked_for(ring: Ring) -> None:
    rows = (await post(ring, prompt_logprobs=1))["choices"][0]["prompt_logprobs"]
    token_id = ring.replica.vocabulary.token_bytes
    assert rows[0] is None
    ((key, value),) = rows[1].items()
    assert token_id(int(key)) == b"b"
    assert value == {"logprob": -1.0, "rank": 1, "decoded_token": "b"}
    await post(ring, status=400, prompt_logprobs=1, stream=True)


async def test_usage_may_come_with_every_chunk(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await streamed(ring, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 3
    assert all(chunk["usage"]["prompt_tokens"] == 2 for chunk in chunks)

"""What holds in every dialect alike: broken bodies, the context's edge, faults in mid-stream, forbidden words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.openapi.test_document import DOCUMENT, answer_schema, validator
from tests.gateway.edge.sse import Stream, read
from tests.ring import MakeRing, Ring
from tests.script import Script, say
from tests.tiny_model import write_tiny_model
from wire.errors import InternalError

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hi"}]
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": USER},
    "/v1/completions": {"model": "tiny", "prompt": "ab"},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": {"model": "tiny", "messages": USER, "max_tokens": 50},
}
BROKEN = (b"", b" ", b'{"a":', b"\xff\xfe{", b"[]", b'"x"', b"null", b"3", b'{"model":"tiny"}', b"[" * 4000)


async def test_a_broken_body_is_400_in_the_dialects_shape(ring: Ring) -> None:
    for path, methods in DOCUMENT["paths"].items():
        if "requestBody" not in methods.get("post", {}) or path == "/v1/conversations":
            continue  # an empty body is a new conversation
        for body in BROKEN:
            response = await ring.http.post(path.replace("{id}", "conv_1"), content=body)
            assert response.status_code == 400, (path, body[:40], response.text)
            validator(answer_schema(path, "post", 400)).validate(response.json())
    await still_serves(ring)


ALTERNATING = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{{ message['content'] }}{% endfor %}"
)


async def test_an_order_that_the_template_refuses_is_400_without_its_source(
    make_ring: MakeRing, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    (model / "chat_template.jinja").write_text(ALTERNATING)
    user, assistant, system = ({"role": role, "content": "x"} for role in ("user", "assistant", "system"))
    async with make_ring(model_path=model) as ring:
        for messages in ([system, user], [user, user], [assistant, user]):
            response = await ring.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
            error = response.json()["error"]
            assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "messages")
            assert "Roles must alternate." in error["message"] and "loop.index0" not in error["message"]
        for stream in (False, True):
            body = {**ASKS["/v1/messages"], "messages": [user, user], "stream": stream}
            response = await ring.http.post("/v1/messages", json=body)
            assert (response.status_code, response.json()["type"]) == (400, "error")
        await still_serves(ring)


def said(path: str, body: str) -> tuple[str, bool]:
    """Return the text of a stream, and whether it ended well."""
    stream = read(body)
    if path == "/v1/chat/completions":
        return stream.text(), stream.finish_reason() is not None
    if path == "/v1/completions":
        choices = [choice for chunk in stream.chunks for choice in chunk.get("choices", ())]
        return "".join(choice["text"] for choice in choices), any(choice["finish_reason"] for choice in choices)
    if path == "/v1/responses":
        text = "".join(e.json()["delta"] for e in stream.events if e.name == "response.output_text.delta")
        return text, stream.events[-1].name in ("response.completed", "response.incomplete")
    pieces = [event.json()["delta"] for event in stream.events if event.name == "content_block_delta"]
    return "".join(piece["text"] for piece in pieces), stream.events[-1].name == "message_stop"


@pytest.mark.parametrize("path", sorted(ASKS))
async def test_a_fault_after_the_first_token_is_told_and_never_looks_like_an_end(ring: Ring, path: str) -> None:
    ring.replica.script = Script(say("one ", "two "), error=InternalError("the engine failed"))
    response = await ring.http.post(path, json={**ASKS[path], "stream": True})
    assert said(path, response.text) == ("one two ", False)
    assert "the engine failed" in response.text
    whole = await ring.http.post(path, json=ASKS[path])
    assert whole.status_code == 500
    validator(answer_schema(path, "post", 500)).validate(whole.json())
    ring.replica.play(*say("hello"))
    await still_serves(ring)


@pytest.fixture
async def guarded(make_ring: MakeRing, tmp_path: Path) -> AsyncIterator[Ring]:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nid = "word"\nkind = "terms"\nterms = ["zorgblat"]\naction = "block"\n')
    async with make_ring(safety_policy=str(policy)) as running:
        yield running


@pytest.mark.parametrize("path", sorted(ASKS))
async def test_a_forbidden_word_leaves_in_no_dialect_and_no_mode(guarded: Ring, path: str) -> None:
    guarded.replica.play(*say("one ", "zorg", "blat", " fine"), finish=None)
    stream = await guarded.http.post(path, json={**ASKS[path], "stream": True})
    assert said(path, stream.text) == ("one ", True)
    whole = await guarded.http.post(path, json=ASKS[path])
    for answer in (stream, whole):
        assert answer.status_code == 200
        assert "zorg" not in answer.text and "fine" not in answer.text
        assert "refusal" in answer.text or "content_filter" in answer.text
    await guarded.replica.cancelled(2)
    await guarded.until_idle()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_usage_is_the_same_streamed_and_whole(ring: Ring, path: str) -> None:
    ring.replica.play(*say("one ", "two ", "three "))
    for _ in range(2):  # the second one hits the prefix cache
        options = {} if path == "/v1/messages" else {"stream_options": {"include_usage": True}}
        stream = read((await ring.http.post(path, json={**ASKS[path], **options, "stream": True})).text)
        whole = (await ring.http.post(path, json=ASKS[path])).json()["usage"]
        streamed = usage_of(stream)
        for usage in (streamed, whole):
            del usage["headrace"]
    assert streamed == whole


def usage_of(stream: Stream) -> dict[str, Any]:
    found: list[dict[str, Any]] = [chunk["usage"] for chunk in stream.chunks if chunk.get("usage")]
    return found[-1]


async def test_a_prompt_at_the_edge_of_the_context(ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "))
    limit = 2048
    for number in (limit - 1, limit, limit + 1):
        for fields in ({}, {"max_tokens": 1}, {"max_tokens": 2 * limit}):
            body = {"model": "tiny", "prompt": [97] * number, **fields}
            response = await ring.http.post("/v1/completions", json=body)
            if number < limit:
                choice = response.json()["choices"][0]
                assert (choice["text"], choice["finish_reason"]) == ("one ", "length")
                continue
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
            assert str(limit) in error["message"] and str(number) in error["message"]
    await still_serves(ring)

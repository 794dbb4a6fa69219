"""Whatever bytes a model emits and however its tokens come together: each dialect says the same streamed and whole.

What a client puts together from deltas (text, thoughts, arguments of calls) is what it would have got in one piece, and
without calls that is the bytes decoded at once, up to the first stop string.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import anyio.to_thread
import httpx
import hypothesis
import pytest
from hypothesis import strategies as st

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.sse import Stream, read
from tests.ring import Ring
from tests.script import Piece, Script, say, tag, think

pytestmark = pytest.mark.anyio

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "6"))
USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object"}
TOOL = {"name": "f", "parameters": SCHEMA}
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 2000, "tools": [{"type": "function", "function": TOOL}]},
    "/v1/completions": {"prompt": "ab", "max_tokens": 2000},
    "/v1/responses": {"input": "hi", "store": False, "max_output_tokens": 2000,
                      "tools": [{"type": "function", **TOOL}]},
    "/v1/messages": {"messages": USER, "max_tokens": 2000, "tools": [{"name": "f", "input_schema": SCHEMA}],
                     "thinking": {"type": "enabled", "budget_tokens": 1000}},
}  # fmt: skip
STOPS = {"/v1/messages": "stop_sequences"}


class Said(NamedTuple):
    """What a client has at the end."""

    text: str
    thoughts: str
    calls: list[str]
    reason: str | None


def streamed(path: str, stream: Stream) -> Said:
    """Put an answer together from its deltas."""
    events = [event.json() for event in stream.events if event.data != "[DONE]"]
    if path == "/v1/responses":
        of: dict[str, list[str]] = {}
        calls: dict[int, str] = {}
        for event in events:
            if event["type"] == "response.function_call_arguments.delta":
                calls[event["output_index"]] = calls.get(event["output_index"], "") + event["delta"]
            elif event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
                calls[event["output_index"]] = event["item"]["arguments"]
            elif event["type"].endswith("_text.delta"):
                of.setdefault(event["type"], []).append(event["delta"])
        output, thoughts = ("".join(of.get(f"response.{kind}_text.delta", ())) for kind in ("output", "reasoning"))
        return Said(output, thoughts, list(calls.values()), events[-1]["response"]["status"])
    if path == "/v1/messages":
        blocks = [{"text": "", "thinking": "", "partial_json": ""} for event in events if "content_block" in event]
        for event in events:
            for name in ("text", "thinking", "partial_json") if event["type"] == "content_block_delta" else ():
                blocks[event["index"]][name] += event["delta"].get(name, "")
        kinds = [event["content_block"]["type"] for event in events if "content_block" in event]
        calls_made = [block["partial_json"] for block, kind in zip(blocks, kinds, strict=True) if kind == "tool_use"]
        reasons = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
        text, thoughts = ("".join(block[name] for block in blocks) for name in ("text", "thinking"))
        return Said(text, thoughts, calls_made, reasons[-1])
    if path == "/v1/completions":
        choices = [choice for event in events for choice in event["choices"]]
        return Said("".join(choice["text"] for choice in choices), "", [], choices[-1]["finish_reason"])
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    parts: dict[int, str] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            parts[call["index"]] = parts.get(call["index"], "") + call["function"]["arguments"]
    thoughts = stream.text(name="reasoning_content")
    return Said(stream.text(), thoughts, list(parts.values()), stream.finish_reason())


def whole(path: str, body: dict[str, Any]) -> Said:
    """Read an answer that came in one piece."""
    if path == "/v1/responses":
        texts: dict[str, list[str]] = {"message": [], "reasoning": []}
        for item in body["output"]:
            texts.setdefault(item["type"], []).extend(part["text"] for part in item.get("content") or ())
        calls = [item["arguments"] for item in body["output"] if item["type"] == "function_call"]
        return Said("".join(texts["message"]), "".join(texts["reasoning"]), calls, body["status"])
    if path == "/v1/messages":
        by = {
            kind: [one for one in body["content"] if one["type"] == kind] for kind in ("text", "thinking", "tool_use")
        }
        calls = [json.dumps(block["input"]) for block in by["tool_use"]]
        text, thoughts = ("".join(block[kind] for block in by[kind]) for kind in ("text", "thinking"))
        return Said(text, thoughts, calls, body["stop_reason"])
    choice = body["choices"][0]
    if path == "/v1/completions":
        return Said(choice["text"], "", [], choice["finish_reason"])
    message = choice["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return Said(message["content"] or "", message.get("reasoning_content") or "", calls, choice["finish_reason"])


def letters(raw: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in raw]


def decoded_up_to(raw: bytes, stops: list[str]) -> str:
    """Return the bytes decoded at once, before the stop string that ends first."""
    text = raw.decode("utf-8", "replace")
    ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return text[: sum(min(ends))] if ends else text


ODD = st.sampled_from(
    [b"\xf0\x9f", b"\x98\x80", b"\xff", "\u2028".encode(), b"\r\n", b"<tool", b"</think>", b"[", b'{"']
)
RAW = st.lists(st.one_of(st.binary(max_size=6), ODD, st.text(max_size=8).map(str.encode)), max_size=8).map(b"".join)
STOP = st.lists(
    st.one_of(st.text(min_size=1, max_size=3), st.sampled_from(["\n", "a", "<", "\ufffd", "😀"])), max_size=3
)
CALLS = st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=6), max_size=2), min_size=1, max_size=2)


def ask_both(http: httpx.Client, path: str, **fields: Any) -> tuple[Said, Said]:
    body = {"model": "tiny", **ASKS[path], **fields}
    stream = http.post(path, json={**body, "stream": True})
    answer = http.post(path, json=body)
    assert stream.status_code == answer.status_code == 200, answer.text
    return streamed(path, read(stream.text)), whole(path, answer.json())


@pytest.mark.parametrize("path", sorted(ASKS))
async def test_any_bytes_are_the_same_text_streamed_whole_and_decoded_at_once(ring: Ring, path: str) -> None:
    @hypothesis.settings(max_examples=EXAMPLES, database=None)
    @hypothesis.given(RAW, STOP, st.integers(1, 9))
    def one(raw: bytes, stops: list[str], per_chunk: int) -> None:
        hypothesis.assume(b"<tool_call>" not in raw and not raw.startswith((b"{", b"[")))
        ring.replica.script = Script(say(*letters(raw)), per_chunk=per_chunk)
        fields: dict[str, Any] = {STOPS.get(path, "stop"): stops}
        if path != "/v1/completions":
            fields["tools"] = []
        stream, answer = ask_both(http, path, **fields)
        assert stream == answer
        assert answer.text == decoded_up_to(raw, stops)

    with httpx.Client(base_url=ring.url, timeout=60.0, trust_env=False) as http:
        await anyio.to_thread.run_sync(one)
    await still_serves(ring)


@pytest.mark.parametrize("path", sorted(set(ASKS) - {"/v1/completions"}))
async def test_thoughts_text_and_calls_put_together_from_deltas_are_the_whole_ones(ring: Ring, path: str) -> None:
    @hypothesis.settings(max_examples=EXAMPLES, database=None)
    @hypothesis.given(RAW, RAW, CALLS, st.booleans(), st.integers(1, 9))
    @hypothesis.example(b"", b"", [{"a": " b  c "}, {"a": ""}], False, 1)  # white space comes by itself
    def one(thought: bytes, text: bytes, calls: list[dict[str, str]], cut: bool, per_chunk: int) -> None:
        written = [json.dumps(call, ensure_ascii=False) for call in calls]
        markup = "".join(f'<tool_call>\n{{"name": "f", "arguments": {one}}}\n</tool_call>' for one in written)
        pieces: list[Piece] = [*tag("<think>"), *think(*letters(thought)), *tag("</think>")]
        pieces += say(*letters(text), *letters(markup.encode()))
        ring.replica.script = Script(pieces[: -len(written[-1]) // 2] if cut else pieces, per_chunk=per_chunk)
        stream, answer = ask_both(http, path)
        if path == "/v1/messages":  # a whole message has arguments as an object, or an empty one if they are cut
            assert [json.loads(one) for one in answer.calls] == [parsed(one) for one in stream.calls]
            answer = answer._replace(calls=stream.calls)
        assert stream == answer
        if not cut and b"<tool" not in text:
            assert stream.calls == written  # to the character: as JSON {"a": 1} and {"a":1} are the same

    def parsed(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return {}

    with httpx.Client(base_url=ring.url, timeout=60.0, trust_env=False) as http:
        await anyio.to_thread.run_sync(one)
    await still_serves(ring)

"""Tool calls in each style: found in the stream, whole in every cut, without markup, whatever is wrong with them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.tools.events import Arguments, CallBegin, CallEnd, Event, Hidden, Text
from gateway.postprocess.tools.parser import ToolParser
from gateway.postprocess.tools.styles import STYLES

KNOWN = frozenset({"weather", "f"})


class Found(NamedTuple):
    text: str
    calls: list[tuple[str, str, bool]]


def collect(events: list[Event]) -> Found:
    text = ""
    calls: list[tuple[str, str, bool]] = []
    for event in events:
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, CallBegin):
            calls.append((event.name, "", False))
        elif isinstance(event, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text, False)
        elif isinstance(event, CallEnd):
            calls[-1] = (*calls[-1][:2], event.complete)
    return Found(text, calls)


def parse(style: str, *pieces: str) -> Found:
    parser = STYLES[style](KNOWN)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.close()
    num_chars = sum(len(e.text) if isinstance(e, Text) else e.num_chars for e in events if isinstance(e, Text | Hidden))
    assert num_chars == sum(map(len, pieces)), "every character is text or hidden"
    return collect(events)


def one(arguments: str, text: str = "", *, name: str = "weather", complete: bool = True) -> Found:
    return Found(text, [(name, arguments, complete)])


NESTED = '{"q": "a \\"}{\\" b\\\\", "deep": {"list": [1, {"x": "]"}], "u": "\\u00e9\\ud83d\\ude00"}}'

CASES: list[tuple[str, str, Found]] = [
    (
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        one('{"city": "Oslo"}'),
    ),
    (
        "hermes",
        f'I look.\n<tool_call>{{"name": "f", "arguments": {NESTED}}}</tool_call>\n',
        one(NESTED, "I look.", name="f"),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>',
        Found("", [("f", "{}", True), ("weather", '{"a": 1}', True)]),
    ),
    (
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {}}, {"name": "weather", "arguments": {"a": 1}}]</tool_call> Done.',
        Found("Done.", [("f", "{}", True), ("weather", '{"a": 1}', True)]),
    ),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', one('{"a": 1}', name="f")),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', one("{}", name="f")),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', one("{}", name="f")),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
        one('{"a": "é"}', name="f"),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "\\ud83d\\ude00 \\ud83d"}</tool_call>',
        one("😀 \ufffd", name="f"),
    ),
    (
        "hermes",
        '<tool_call>{"function": {"name": "f", "arguments": {"a": 1}}, "id": "x"}</tool_call>',
        one('{"a": 1}', name="f"),
    ),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>', one('{"a": 1}', name="unknown")),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> in a string"}}</tool_call>',
        one('{"a": "</tool_call> in a string"}', name="f"),
    ),
    (
        "hermes",
        'One. <tool_call>{"name": "f"}</tool_call>\n <tool_call>{"name": "f"}</tool_call> Two.\n',
        Found("One. Two.\n", [("f", "{}", True), ("f", "{}", True)]),
    ),
    # broken: what came of the arguments, no markup, no crash
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', one('{"a": 1', name="f", complete=False)),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', one('{"a": 1', name="f", complete=False)),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>\n',
        one('{"a": "x', name="f", complete=False),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call><tool_call>{"name": "weather"}</tool_call>',
        Found("", [("f", '{"a": "x', False), ("weather", "{}", True)]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}}\n</tool_call>', one("{}", name="f")),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", Found("{'name': 'f', 'arguments': {}}", [])),
    ("hermes", "<tool_call>no call</tool_call> at all", Found("no call at all", [])),
    ("hermes", "<tool_call>", Found("", [])),
    ("hermes", '<tool_call>{"na', Found('{"na', [])),
    ("hermes", "a < b <tool_cal and <tool", Found("a < b <tool_cal and <tool", [])),
    ("hermes", "  text  \n", Found("  text  \n", [])),
    ("hermes", '{"name": "f", "arguments": {}}', Found('{"name": "f", "arguments": {}}', [])),
    ("llama3", '{"name": "weather", "parameters": {"city": "Oslo"}}', one('{"city": "Oslo"}')),
    ("llama3", '\n{"type": "function", "name": "f", "parameters": {}}', one("{}", name="f")),
    ("llama3", '<|python_tag|>{"name": "other", "parameters": {"a": 1}}', one('{"a": 1}', name="other")),
    ("llama3", 'Let me. <|python_tag|>{"name": "f", "parameters": {"a": 1}}', one('{"a": 1}', "Let me.", name="f")),
    (
        "llama3",
        '{"name": "f", "parameters": {}}; {"name": "weather", "parameters": {"a": 1}}',
        Found("", [("f", "{}", True), ("weather", '{"a": 1}', True)]),
    ),
    ("llama3", '{"name": "Ann", "age": 3}', Found('{"name": "Ann", "age": 3}', [])),
    ("llama3", '{"age": 3, "name": "f"}', Found('{"age": 3, "name": "f"}', [])),
    ("llama3", "[1, 2]", Found("[1, 2]", [])),
    ("llama3", 'Like {"name": "f", "parameters": {}}', Found('Like {"name": "f", "parameters": {}}', [])),
    ("llama3", "<|python_tag|>print(1)", Found("print(1)", [])),
    ("llama3", '{"name": "f", "parameters": {"a": ', one('{"a": ', name="f", complete=False)),
    ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]', one('{"city": "Oslo"}')),
    (
        "mistral",
        'Yes. [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "weather", "arguments": {"a": 1}}]',
        Found("Yes.", [("f", "{}", True), ("weather", '{"a": 1}', True)]),
    ),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', one('{"city": "Oslo"}')),
    (
        "mistral",
        '[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{}[TOOL_CALLS]weather{"a": {"b": "}"}}',
        Found("", [("f", "{}", True), ("weather", '{"a": {"b": "}"}}', True)]),
    ),
    ("mistral", "[TOOL_CALLS]nothing to call", Found("nothing to call", [])),
    ("mistral", "[TOOL", Found("[TOOL", [])),
    ("json", '```json\n{"name": "f", "arguments": {"a": 1}}\n```', one('{"a": 1}', name="f")),
    ("json", '```json\n{"a": 1}\n```', Found('```json\n{"a": 1}\n```', [])),
    ("json", "``` x", Found("``` x", [])),
    (
        "json",
        '[{"name": "f", "parameters": {}}, {"name": "weather", "arguments": {"a": 1}}]',
        Found("", [("f", "{}", True), ("weather", '{"a": 1}', True)]),
    ),
    ("json", 'functools[{"name": "f", "arguments": {}}]', one("{}", name="f")),
    ("json", '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>', one("{}", name="f")),
]


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_the_whole_text_and_single_characters_give_the_same_calls(style: str, text: str, expected: Found) -> None:
    assert parse(style, text) == expected
    assert parse(style, *text) == expected
    for at in range(1, len(text)):
        assert parse(style, text[:at], text[at:]) == expected


TAGS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "```json", "functools", "é😀")
PARTS = (
    '{"name": "f"',
    ', "arguments": ',
    '"a": ',
    "\\u00",
    "e9",
    "null",
    "weather",
    "\\ud83d",
    '{"name": "f", "x": 1}',
)
FRAGMENTS = st.sampled_from((*TAGS, *PARTS, *'{}"[],;f< \n\\'))


@pytest.mark.parametrize("style", STYLES)
@given(st.lists(FRAGMENTS, max_size=12), st.lists(st.integers(1, 60), max_size=12))
def test_any_cut_of_any_text_gives_what_the_whole_text_gives(style: str, fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    places = [0, *sorted(cut for cut in set(cuts) if cut < len(text)), len(text)]
    whole = parse(style, text)
    assert parse(style, *(text[a:b] for a, b in pairwise(places))) == whole
    assert not any(tag in whole.text for tag in STYLES[style](KNOWN).opens)  # type: ignore[attr-defined]
    json.dumps(whole).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(), c, max_size=3),
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans(), st.lists(st.integers(1, 200), max_size=8))
def test_arguments_come_out_as_the_model_wrote_them(value: dict[str, object], escape: bool, cuts: list[int]) -> None:
    arguments = json.dumps(value, ensure_ascii=escape)
    forms = {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>',
        "llama3": f'{{"name": "f", "parameters": {arguments}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{arguments}",
        "json": f'[{{"name": "f", "arguments": {arguments}}}]',
    }
    for style, text in forms.items():
        places = [0, *sorted(cut for cut in set(cuts) if cut < len(text)), len(text)]
        assert parse(style, *(text[a:b] for a, b in pairwise(places))) == one(arguments, name="f")


def test_nothing_is_held_longer_than_it_may_become_a_call() -> None:
    parser: ToolParser = STYLES["hermes"](KNOWN)
    shown = [collect(parser.feed(piece)).text for piece in ("all ", "good <", "b> ", "<tool_x", " end")]
    assert shown == ["all", " good", " <b>", " <tool_x", " end"]
    parser = STYLES["llama3"](KNOWN)
    assert [collect(parser.feed(piece)).text for piece in ('{"te', "mp", '": ', "3}")] == ["", "", '{"temp":', " 3}"]


def test_arguments_stream_as_they_come() -> None:
    parser = STYLES["hermes"](KNOWN)
    parser.feed('<tool_call>{"name": "f", "arguments": ')
    pieces = ['{"a"', ': "long', ' text", ', '"b": {}', "}"]
    assert [e.text for piece in pieces for e in parser.feed(piece) if isinstance(e, Arguments)] == pieces


def test_call_ids_are_of_the_form_that_the_template_takes_back() -> None:
    ids = {style: [STYLES[style](KNOWN).call_id(name) for name in ("r:0:0", "r:0:1", "r:0:0")] for style in STYLES}
    for one_id, other, again in ids.values():
        assert one_id == again != other
    assert ids["hermes"][0].startswith("call_")
    assert len(ids["mistral"][0]) == 9 and ids["mistral"][0].isalnum()

"""Tool calls in each style: found in the stream, whole in every cut, without markup, whatever is wrong with them."""

from __future__ import annotations

import json
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.tools.element_reader import as_json
from gateway.postprocess.tools.events import Arguments
from gateway.postprocess.tools.parser import ToolParser
from gateway.postprocess.tools.styles import STYLES
from tests.gateway.postprocess.tools.calls import (
    CALL,
    CALL_END,
    CALLS,
    CALLS_END,
    CASES,
    KNOWN,
    SEP,
    Found,
    coder,
    collect,
    deepseek,
    glm,
    kimi,
    minimax,
    olmo,
    one,
    parse,
)

ARGUMENTS = '{"city": "Oslo"}'
WHOLE = [
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'),
    ("llama3", f'{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    ("llama3", f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    ("mistral", f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}]'),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"),
    ("json", f'{{"name": "weather", "arguments": {ARGUMENTS}}}'),
    ("json", f'```json\n[{{"name": "weather", "arguments": {ARGUMENTS}}}]\n```'),
    ("qwen3_coder", coder(("city", "Oslo"))),
    ("seed_oss", coder(("city", "Oslo"), tag="seed:tool_call")),
    ("minimax_m2", minimax(("city", "Oslo"))),
    ("olmo3", olmo('weather(city="Oslo")')),
    ("glm45", glm(("city", "Oslo"))),
    ("deepseek_v3", deepseek(("weather", ARGUMENTS))),
    ("deepseek_v31", f"{CALLS}{CALL}weather{SEP}{ARGUMENTS}{CALL_END}{CALLS_END}"),
    ("kimi_k2", kimi(("weather", ARGUMENTS))),
]


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_the_whole_text_and_single_characters_give_the_same_calls(style: str, text: str, expected: Found) -> None:
    assert parse(style, text) == expected
    assert parse(style, *text) == expected
    for at in range(1, len(text)):
        assert parse(style, text[:at], text[at:]) == expected


@pytest.mark.parametrize(("style", "text"), WHOLE, ids=[style for style, _ in WHOLE])
def test_of_a_call_that_was_cut_nothing_is_text_and_no_tag_stands_in_its_arguments(style: str, text: str) -> None:
    for at in range(1, len(text)):
        for pieces in ((text[:at],), tuple(text[:at])):
            found = parse(style, *pieces, cut=True)
            assert found.text == "" and len(found.calls) <= 1
            assert all(ARGUMENTS.startswith(arguments) for _, arguments, _ in found.calls)


@pytest.mark.parametrize("style", ["json", "llama3"])
def test_bare_json_that_can_be_no_call_is_text_where_it_was_cut(style: str) -> None:
    for text in ('{"name": "Ann lives', '{"type": "x", "fo', '{"x', "[1", "hello "):
        assert parse(style, text, cut=True) == Found(text, [])
    for text in ('{"name": "weat', '{"na', "{", "["):
        assert parse(style, text, cut=True) == Found("", [])


def test_text_before_a_tag_that_was_cut_is_shown_without_it() -> None:
    assert parse("hermes", "I look. <tool", cut=True) == Found("I look.", [])
    assert parse("hermes", "I look. ", cut=True) == Found("I look. ", [])
    assert parse("hermes", "<tool_call>no call</tool_call> at all <", cut=True) == Found("no call at all", [])


TAGS: tuple[str, ...] = (
    *("<function=", "<parameter=", ">", "</parameter>", "</function>", "weather", "city", "days", "\n"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", CALLS, CALLS_END, CALL, CALL_END, SEP, "function"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
)
TAGS += ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "```json", "functools", "é😀")
TAGS += ("<function_calls>", "</function_calls>", "weather(", "city=", ")", "(", "'", "True", "\\x4")
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


@pytest.mark.parametrize("style", sorted(STYLES.keys() - {"harmony"}))  # test_harmony.py
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
        "deepseek_v3": deepseek(("f", arguments)),
        "deepseek_v31": f"{CALLS}{CALL}f{SEP}{arguments}{CALL_END}{CALLS_END}",
        "kimi_k2": kimi(("f", arguments)),
    }
    for style, text in forms.items():
        places = [0, *sorted(cut for cut in set(cuts) if cut < len(text)), len(text)]
        assert parse(style, *(text[a:b] for a, b in pairwise(places))) == one(arguments, name="f")


@given(st.text(), JSON, st.lists(st.integers(1, 200), max_size=8))
def test_elements_come_out_as_json_of_the_same_values(text: str, value: object, cuts: list[int]) -> None:
    hypothesis.assume("</" not in text)
    other = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        other = value
        hypothesis.assume("</" not in value and as_json(value, None)[:1] == '"')
    pairs = [("city", text), ("x", other)]
    for style, written in (("qwen3_coder", coder(*pairs)), ("glm45", glm(*pairs)), ("glm45", glm(*pairs, gap=""))):
        places = [0, *sorted(cut for cut in set(cuts) if cut < len(written)), len(written)]
        found = parse(style, *(written[a:b] for a, b in pairwise(places)))
        assert found.calls[0][::2] == ("weather", True) and not found.text
        assert json.loads(found.calls[0][1]) == {"city": text, "x": value}


def test_texts_of_elements_stream_as_they_come() -> None:
    parser = STYLES["qwen3_coder"](KNOWN)
    parser.feed("<tool_call>\n<function=weather>\n<parameter=city>\n")
    pieces = ["New", " York", "\n", "City"]
    shown = [[e.text for e in parser.feed(piece) if isinstance(e, Arguments)] for piece in pieces]
    assert shown == [["New"], [" York"], [], ["\\nCity"]]


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

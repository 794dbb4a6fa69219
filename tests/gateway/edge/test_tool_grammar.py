"""Grammars of tool calls: what they let through is what the parsers read, and nothing else gets through."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import llguidance
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from gateway.edge.schema.tools import ToolPlan, plan_tools
from gateway.postprocess.tools.events import Arguments, CallBegin
from gateway.postprocess.tools.styles import STYLES
from tests.harmony import in_characters
from wire.errors import InvalidRequestError
from wire.messages import Grammar, SamplingParams
from wire.model_card import ModelCard

TOKENIZER = LLTokenizer("byte")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
STRICT = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}

ONE = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "llama3": '{"name": "weather", "parameters": {"city": "Oslo"}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]',
    "json": '{"name": "weather", "arguments": {"city": "Oslo"}}',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
    "</seed:tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Oslo"}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
    "olmo3": '<function_calls>weather(city="Oslo")</function_calls>',
    "harmony": '.weather <|constrain|>json<|message|>{"city": "Oslo"}',
}
ARGUMENTS = {
    "qwen3_coder": "<parameter=city>\nOslo\n</parameter>\n",
    "seed_oss": "<parameter=city>\nOslo\n</parameter>\n",
    "minimax_m2": '<parameter name="city">Oslo</parameter>\n',
    "glm45": "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n",
}


def no_arguments(style: str) -> str:
    """Return how a style writes a call of `weather` without arguments."""
    if style == "olmo3":
        return ONE[style].replace('city="Oslo"', "")
    if style in ARGUMENTS:
        return ONE[style].replace(ARGUMENTS[style], "")
    return ONE[style].replace('{"city": "Oslo"}', "{}")


# Styles whose calls begin with a marker that a grammar can find.
MARKED = tuple(style for style in ONE if style not in ("llama3", "json", "harmony"))
TWO = {
    "hermes": ONE["hermes"] + '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    "mistral": ONE["mistral"][:-1] + ', {"name": "clock", "arguments": {}}]',
    "json": f'[{ONE["json"]}, {{"name": "clock", "arguments": {{}}}}]',
    **{style: f"{ONE[style]}\n{no_arguments(style).replace('weather', 'clock')}" for style in ARGUMENTS},
    "olmo3": '<function_calls>weather(city="Oslo")\nclock()</function_calls>',
    "kimi_k2": ONE["kimi_k2"].replace(
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
}


def card(style: str, **tags: int) -> ModelCard:
    return ModelCard(
        name="m",
        path=Path(),
        architecture="",
        max_model_len=8,
        vocab_size=8,
        eos_token_ids=(),
        bos_token=None,
        eos_token=None,
        bos_token_id=None,
        add_bos_token=False,
        chat_template=None,
        created=0,
        tool_style=style,
        tool_tags=tags,
    )


def plan(
    style: str, choice: Any = "required", tools: list[Any] | None = None, parallel: bool | None = None
) -> ToolPlan:
    return plan_tools(tools or [WEATHER, CLOCK], choice, parallel, card(style))


class WithTags:
    """A vocabulary of bytes, an end, and control tokens from 300 on, as llguidance wants to see one."""

    eos_token_id, bos_token_id = 256, None

    def __init__(self, tags: dict[str, int]) -> None:
        named = {number: tag.encode() for tag, number in tags.items()}
        self.tokens = [bytes([at]) for at in range(256)]
        self.tokens += [named.get(at, b"<unused %d>" % at) for at in range(256, 300 + len(tags))]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def control_tokens(style: str) -> dict[str, int]:
    """Return numbers for the tags of a style that can be control tokens."""
    tags = [tag for tag in STYLES[style]({}).tags if not tag.startswith(("<function", "<invoke")) and tag != "[ARGS]"]
    return {tag: 300 + at for at, tag in enumerate(tags)}


def ids_of(text: str, tags: dict[str, int]) -> list[int]:
    """Return the ids of a text in which tags stand as control tokens."""
    if not tags:
        return list(text.encode())
    pieces = re.split("|".join(f"({re.escape(tag)})" for tag in tags), text)
    return [number for piece in pieces if piece for number in ([tags[piece]] if piece in tags else piece.encode())]


def allows(grammar: Grammar | None, text: str, tags: dict[str, int] | None = None) -> bool:
    """Tell whether a text is a whole answer."""
    assert grammar is not None and grammar.kind == "lark"
    compiled = llguidance.grammar_from("lark", grammar.source)
    tokenizer = LLTokenizer(TokenizerWrapper(WithTags(tags))) if tags else TOKENIZER
    assert not LLMatcher.validate_grammar(compiled, tokenizer)
    matcher, ids = LLMatcher(tokenizer, compiled), ids_of(text, tags or {})
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("style", STYLES)
def test_required_lets_only_calls_through_and_the_parser_reads_them(style: str) -> None:
    grammar = plan(style).grammar
    assert allows(grammar, ONE[style])
    parser = STYLES[style]({"weather": CITY, "clock": None})
    text = ONE[style] if style != "harmony" else in_characters(f"<|channel|>commentary to=functions{ONE[style]}")
    events = parser.feed(text) + parser.close()
    assert [event.name for event in events if isinstance(event, CallBegin)] == ["weather"]
    assert "".join(event.text for event in events if isinstance(event, Arguments)) == '{"city": "Oslo"}'
    for wrong in (
        "hello",
        "",
        ONE[style].replace("weather", "other"),
        ONE[style].replace('"Oslo"', "5") if style not in ARGUMENTS else no_arguments(style),
        ONE[style][:-1],
    ):
        assert not allows(grammar, wrong)


@pytest.mark.parametrize("style", TWO)
def test_several_calls_pass_unless_parallel_calls_are_off(style: str) -> None:
    assert allows(plan(style).grammar, TWO[style])
    assert not allows(plan(style, parallel=False).grammar, TWO[style])
    assert allows(plan(style, parallel=False).grammar, ONE[style])


@pytest.mark.parametrize("style", STYLES)
def test_a_named_function_is_the_only_one_that_passes_and_all_tools_are_shown(style: str) -> None:
    named = plan(style, {"type": "function", "function": {"name": "clock"}})
    assert len(named.tools) == 2
    assert not allows(named.grammar, ONE[style])
    assert allows(named.grammar, no_arguments(style).replace("weather", "clock"))
    assert plan(style, {"type": "function", "name": "clock"}) == named
    assert not named.parallel, "it is called once"


def test_control_tokens_stand_in_a_grammar_by_their_number() -> None:
    tags = {"[TOOL_CALLS]": 5, "[ARGS]": 6}
    made = plan_tools([WEATHER], "required", None, card("mistral", **tags)).grammar
    assert made is not None and 'call_0: "weather" <[6]> args_0' in made.source and "block: <[5]> call" in made.source
    assert not LLMatcher.validate_grammar(llguidance.grammar_from("lark", made.source), TOKENIZER)
    tags = {"<tool_call>": 5, "</tool_call>": 6}
    for choice in ("auto", "required"):
        made = plan_tools([STRICT], choice, None, card("hermes", **tags)).grammar
        assert made is not None and '<[5]> "\\n" call "\\n" <[6]>' in made.source
        assert not LLMatcher.validate_grammar(llguidance.grammar_from("lark", made.source), TOKENIZER)


@pytest.mark.parametrize("style", MARKED)
@pytest.mark.parametrize("controls", [False, True])
def test_under_auto_only_strict_functions_are_held_to_their_schema_once_a_call_began(
    style: str, controls: bool
) -> None:
    tags = control_tokens(style) if controls else {}
    model = card(style, **tags)
    assert plan_tools([WEATHER, CLOCK], "auto", None, model).grammar is None
    made = plan_tools([STRICT, CLOCK], "auto", None, model)
    one, no_clock = ONE[style], no_arguments(style).replace("weather", "clock")
    assert not made.required
    for text in ("", "Hello, a < b [x] {}", "I look.\n" + one, one + " Done.", "so " + no_clock, one + one):
        assert allows(made.grammar, text, tags), text
    missing = no_arguments(style)
    for text in (missing, "so " + one.replace("weather", "other"), one + " and " + missing, one[: len(one) // 2]):
        assert not allows(made.grammar, text, tags), text
    single = plan_tools([STRICT, CLOCK], "auto", False, model)
    assert allows(single.grammar, one, tags) and not allows(single.grammar, "so " + missing, tags)


@pytest.mark.parametrize("style", sorted(STYLES.keys() - set(MARKED)))
def test_where_nothing_marks_the_beginning_of_a_call_auto_is_free(style: str) -> None:
    assert plan(style, "auto", [STRICT, CLOCK]).grammar is None


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("qwen3_coder", "so <function=weather>\n</function>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        ("kimi_k2", "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
    ],
)
@pytest.mark.parametrize("controls", [False, True])
def test_a_call_whose_outer_tag_was_left_out_is_held_to_its_schema_too(style: str, text: str, controls: bool) -> None:
    tags = control_tokens(style) if controls else {}
    parser = STYLES[style]({"weather": CITY})
    assert [event for event in parser.feed(text) + parser.close() if isinstance(event, CallBegin)], "it is a call"
    made = plan_tools([STRICT], "auto", None, card(style, **tags))
    assert not allows(made.grammar, text, tags)
    right = ARGUMENTS.get(style, '{"city": "Oslo"}')
    assert allows(made.grammar, text.replace("{}", right).replace("\n</function>", f"\n{right}</function>"), tags)


@pytest.mark.parametrize("style", ARGUMENTS)
def test_under_auto_a_strict_text_that_cannot_be_enforced_is_free_and_the_rest_is_not(style: str) -> None:
    text, count = {"type": "string", "pattern": "[0-9]+"}, {"type": "integer"}
    schema = {"type": "object", "properties": {"id": text, "n": count}, "required": ["id", "n"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    made = plan(style, "auto", [tool])
    assert allows(made.grammar, written(style, id="any text", n="3"))
    assert not allows(made.grammar, written(style, id="1", n="x"))


def test_calls_that_must_come_win_over_a_response_format_and_others_give_way() -> None:
    shaped = SamplingParams(grammar=Grammar(kind="json_object"))
    assert plan("hermes").bind(shaped).grammar == plan("hermes").grammar
    assert plan("hermes", "auto", [STRICT]).bind(shaped) == shaped
    assert plan("hermes", "auto").bind(SamplingParams()) == SamplingParams()


def test_any_schema_with_names_that_need_quoting_makes_a_valid_grammar() -> None:
    schema = {"type": "object", "properties": {'q"\\\n{': {"enum": ['"', "\\", "é😀", None, {"a": []}]}}}
    tools = [{"type": "function", "function": {"name": "f-1_x", "parameters": schema}}]
    for style in STYLES:
        made = plan(style, "required", tools).grammar
        text = ONE[style].replace("weather", "f-1_x").replace('{"city": "Oslo"}', '{"q\\"\\\\\\n{": null}')
        if style in ARGUMENTS:
            text = text.replace("city", 'q"\\\n{').replace("Oslo", "null")
        text = text.replace('city="Oslo"', 'q"\\\n{=null')
        assert allows(made, text)


def written(style: str, **values: str) -> str:
    """Return a call of `f` with these arguments as elements."""
    element = ARGUMENTS[style]
    inner = "".join(element.replace("city", key).replace("Oslo", value) for key, value in values.items())
    return ONE[style].replace("weather", "f").replace(element, inner)


@pytest.mark.parametrize("style", ARGUMENTS)
def test_elements_are_held_to_the_schema_of_each_value(style: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "kind": {"$ref": "#/$defs/kind"},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "place": {"$ref": "#/$defs/place"},
        },
        "required": ["text", "count"],
        "$defs": {
            "kind": {"enum": ["a", 1, None]},
            "place": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    grammar = plan(style, "required", tools).grammar
    right = [
        {"text": "any\n<text> </x>", "count": "3"},
        {"text": "", "kind": "null", "count": "9", "place": '{"x": 1.5}'},
        {"text": "t", "kind": "a", "count": "1"},
    ]
    wrong = [{}, {"text": "t"}, {"count": "1"}, {"text": "t", "count": "10"}, {"text": "t", "count": "x"}]
    wrong += [{"text": "t", "kind": "b", "count": "1"}, {"text": "t", "count": "1", "place": '{"x": "1"}'}]
    for values in right:
        assert allows(grammar, written(style, **values)), values
    for values in wrong:
        assert not allows(grammar, written(style, **values)), values
    free = plan(style, "required", [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    assert allows(free.grammar, written(style, anything="goes", more="1"))


@pytest.mark.parametrize("style", ARGUMENTS)
def test_a_strict_function_whose_texts_cannot_be_enforced_is_refused(style: str) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string", "pattern": "[0-9]+"}}, "required": ["id"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert plan(style, "required", [tool]).grammar is not None
    tool["function"]["strict"] = True  # type: ignore[index]
    with pytest.raises(InvalidRequestError, match="pattern of 'id' cannot be enforced"):
        plan(style, "required", [tool])


@pytest.mark.parametrize("style", ("qwen3_coder", "glm45", "deepseek_v3", "deepseek_v31", "kimi_k2"))
def test_tags_that_are_control_tokens_stand_by_their_number_in_every_style(style: str) -> None:
    tags = {tag: 5 + at for at, tag in enumerate(STYLES[style]({}).tags) if not tag.startswith("<function")}
    made = plan_tools([WEATHER, CLOCK], "required", None, card(style, **tags)).grammar
    assert made is not None
    assert not LLMatcher.validate_grammar(llguidance.grammar_from("lark", made.source), TOKENIZER)
    assert not [tag for tag in tags if f'"{tag}' in made.source]


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ('b="aa", d=1', True),
        ('a=[true], b="a", c={"x": null}, d=2', True),
        ('b="a", c={}, d=2, e=0.5', True),
        ('a=[], d=1, b="a"', False),
        ('b="a"', False),
        ('b="b", d=1', False),
        (', b="a", d=1', False),
        ('b="a"d=1', False),
        ('b="a", d=1,', False),
        ('b="a", d=1, x=2', False),
    ],
)
def test_arguments_as_in_python_have_commas_between_those_that_come_and_are_held_to_their_schemas(
    arguments: str, fits: bool
) -> None:
    properties = {
        "a": {"type": "array", "items": {"type": "boolean"}},
        "b": {"type": "string", "pattern": "^a+$"},
        "c": {"type": "object"},
        "d": {"$ref": "#/$defs/count"},
        "e": {"type": "number"},
    }
    schema = {"type": "object", "properties": properties, "required": ["b", "d"], "additionalProperties": False}
    schema["$defs"] = {"count": {"type": "integer"}}
    function = {"name": "f", "parameters": schema, "strict": False}
    text = f"<function_calls>f({arguments})</function_calls>"
    made = plan("olmo3", "required", [{"type": "function", "function": function}]).grammar
    assert allows(made, text) == fits
    if fits:
        events = STYLES["olmo3"]({}).feed(text)
        read = json.loads("".join(event.text for event in events if isinstance(event, Arguments)))
        assert list(read) == [key for key in properties if f"{key}=" in arguments]


def test_a_function_that_says_nothing_of_its_arguments_may_be_given_any_as_in_python() -> None:
    made = plan(
        "olmo3", "required", [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    )
    for arguments in ("", 'x="a"', 'x="a", y={"z": [1]}'):
        assert allows(made.grammar, f"<function_calls>f({arguments})</function_calls>")

"""Grammars of custom tools inside the grammar of a call: in JSON too they let through what they say, and no more."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from gateway.edge.schema.tools import plan_tools
from gateway.postprocess.tools.events import Arguments, CallBegin
from gateway.postprocess.tools.free_input import FreeInput
from gateway.postprocess.tools.styles import STYLES
from tests.gateway.edge.test_tool_grammar import allows, card
from wire.errors import InvalidRequestError

# The grammar of the tool with which Codex changes files, in the same constructs.
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | update
add: "*** Add File: " filename LF add_line+
update: "*** Update File: " filename LF change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change: (context | line)+ eof?
context: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
eof: "*** End of File" LF
%import common.LF
"""
A_PATCH = """*** Begin Patch
*** Add File: a "b"\\c.py
+print("hé\\n")
+
*** Update File: x
@@ def f():
-\told
+\tnew
*** End Patch
"""

REGEXES = [
    (r'[a-z]+"[^x]\\', 'ab"y\\', 'ab"x\\'),
    ("a.b", "a\tb", "a\nb"),
    ("(?s:a.b)", "a\nb", "a\nbb"),
    ("(?s)a.b", "a\nb", "ab"),
    (r"(?i)AB\n", "ab\n", "ab\t"),
    (r"\s+\d", "\n \t5", "5"),
    (r"a/b\/c", "a/b/c", "ab/c"),
    (r"\x41\u{1F600}\.", "A😀.", "A😀x"),
    (r"[[:alpha:]&&[^b]]\.", "c.", "b."),
    (r'[]"]+', ']"', "]["),
    (r"\x1b\[", "\x1b[", "x["),
    (r'(?P<n>a|"b")', '"b"', "b"),
    (r"\p{P}{2}", '"\\', "ab"),
    (r"[^\n]*", 'x "\\\t', "x\n"),
]
LARKS = [
    ('start: A+ B\nA: "\\n"\nB: "q\\"x"i', '\n\nQ"X', 'Q"X'),
    ('start: ("a".."c" | "!".."#")+', 'ab"#', "d"),
    ("%import common.WS\n%ignore WS\nstart: X+\n%import common.INT -> X", "1\n 2", "\n1"),
    ('%import common (WS, INT)\nstart: INT WS X\nX: "\\""', '1\t \n"', '1"'),
    ("start: (TEXT LF)+\nTEXT: /[^\\n]+/\n%import common.LF", 'a"b\n\\c\n', "\n"),
    (
        'start: (LINE LF)+\nLINE: WORD | QUOTED\nWORD: /[^\\n" ]+/\nQUOTED: "\\"" /[^"]*/ "\\""\nLF: "\\n"',
        'a\\b\n"q r"\n',
        '"q\n',
    ),
    ('start: string\nstring: "\\"" /[^"]*/ "\\""', '"a\\b\n"', '"a"b"'),
    ('start: (stmt LF)+\nstmt: /.*;/\nLF: "\\n"', 'select "a;b";\nx;\n', "x\n"),
    ('start: x ["y"] LF\nx: /.+/\n%import common.LF', "a\\y\n", "\n"),
    ("start: A\nA: /.*/ & /a.*/", 'a"b', "b"),
    ('start: NL+ Q\n%import common.NEWLINE -> NL\nQ: "\\""', '\n\n"', '"'),
    ('start: "a"~2..3 // a comment with "\n# and "\n', "aaa", "a"),
    ('start: "\\x41" [lower]\nlower[lazy]: /b+/', "Ab", "B"),
]


def patched(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "patch", "description": "Changes files.", "format": form}


def called(style: str, text: str) -> str:
    """Return how a style writes the call, as llguidance's forms have it."""
    written = f'{{"input": {json.dumps(text, ensure_ascii=False)}}}'
    return {
        "hermes": f'<tool_call>\n{{"name": "patch", "arguments": {written}}}\n</tool_call>',
        "llama3": f'{{"name": "patch", "parameters": {written}}}',
        "qwen3_coder": f"<tool_call>\n<function=patch>\n<parameter=input>\n{text}\n</parameter>\n</function>\n"
        "</tool_call>",
        "glm45": f"<tool_call>patch\n<arg_key>input</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
    }[style]


@pytest.mark.parametrize("style", ["hermes", "llama3", "qwen3_coder", "glm45"])
def test_a_custom_tool_that_must_be_called_gets_a_text_of_its_grammar(style: str) -> None:
    plan = plan_tools([patched("lark", PATCH)], {"type": "custom", "name": "patch"}, None, card(style))
    answer = called(style, A_PATCH)
    assert allows(plan.grammar, answer)
    assert not allows(plan.grammar, called(style, A_PATCH.replace("*** Add", "** Add")))
    parser = STYLES[style]({tool["function"]["name"]: tool["function"]["parameters"] for tool in plan.tools})
    events = parser.feed(answer) + parser.close()
    assert [event.name for event in events if isinstance(event, CallBegin)] == ["patch"]
    reader = FreeInput()
    assert reader.feed("".join(event.text for event in events if isinstance(event, Arguments))) == A_PATCH


@pytest.mark.parametrize(("pattern", "good", "bad"), REGEXES)
def test_a_pattern_lets_the_escaped_text_through(pattern: str, good: str, bad: str) -> None:
    plan = plan_tools([patched("regex", pattern)], "required", None, card("hermes"))
    assert allows(plan.grammar, called("hermes", good))
    assert not allows(plan.grammar, called("hermes", bad))


@pytest.mark.parametrize(("grammar", "good", "bad"), LARKS)
def test_a_grammar_lets_the_escaped_text_through(grammar: str, good: str, bad: str) -> None:
    plan = plan_tools([patched("lark", grammar)], "required", None, card("hermes"))
    assert allows(plan.grammar, called("hermes", good))
    assert not allows(plan.grammar, called("hermes", bad))


ATOMS = ["a", "b", '"', "\\\\", r"\n", ".", r"[^\n]", '[^"]', '[a"]', r"\s", r"[^a\\]", '(?:a|")', r"\t"]
REPEATS = ["", "", "*", "+", "?", "{1,2}"]


@pytest.mark.parametrize("seed", range(30))
def test_patterns_in_a_row_let_nothing_through_that_they_do_not_say(seed: int) -> None:
    chance = random.Random(seed)
    patterns = [
        "".join(chance.choice(ATOMS) + chance.choice(REPEATS) for _ in range(chance.randint(1, 3)))
        for _ in range(chance.randint(1, 3))
    ]
    grammar = patched("lark", "start: " + " ".join(f"/{pattern}/" for pattern in patterns))
    plan = plan_tools([grammar], "required", None, card("hermes"))
    said = re.compile("".join(f"(?:{pattern})" for pattern in patterns))
    for _ in range(20):
        text = "".join(chance.choice('ab"\\\n\t ') for _ in range(chance.randint(0, 5)))
        assert said.fullmatch(text) or not allows(plan.grammar, called("hermes", text)), (patterns, text)


@pytest.mark.parametrize(
    "grammar",
    [
        "start: %json {}",
        "start: <|im_end|>",
        "start: @other",
        'start: "a" }\nstart: {"b"',
        "start: ~A\nA: /x/",
        'start: "a',
        "%import other.X\nstart: X",
    ],
)
def test_what_has_no_place_in_a_tools_grammar_is_refused_by_its_field(grammar: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan_tools([patched("lark", grammar)], None, None, card("qwen3_coder"))
    assert caught.value.param == "tools[0].format.definition"


def test_what_cannot_be_written_as_json_binds_nobody_who_need_not_call() -> None:
    unwritable = patched("lark", "start: /(?x) a/")
    assert plan_tools([unwritable], "auto", None, card("hermes")).grammar is None
    assert plan_tools([unwritable], "required", None, card("qwen3_coder")).grammar is not None
    with pytest.raises(InvalidRequestError, match="flags") as caught:
        plan_tools([unwritable], "required", None, card("hermes"))
    assert caught.value.param == "tools[0].format.definition"


def test_under_auto_the_text_is_held_to_its_grammar_from_where_a_call_begins() -> None:
    grammar = plan_tools([patched("regex", "[0-9]+")], "auto", None, card("hermes")).grammar
    assert allows(grammar, "so be it") and allows(grammar, "so " + called("hermes", "42"))
    assert not allows(grammar, called("hermes", "x"))


@pytest.mark.parametrize(
    ("syntax", "definition", "said"),
    [
        ("regex", "".join(f"[a-z{chr(0x4E00 + at)}]" for at in range(129)), "128"),
        ("lark", "start: A0\n" + "\n".join(f"A{at}: A{at + 1} A{at + 1}" for at in range(64)) + "\nA64: /.*/", "64"),
        ("regex", "[" * 500 + "a" + "]" * 500, "invalid regex"),
        ("regex", "[z-a]", "invalid regex"),
        ("regex", "[a", "does not end"),
    ],
)
def test_what_would_take_long_or_is_no_pattern_is_refused_before_it_is_written(
    syntax: str, definition: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        plan_tools([patched(syntax, definition)], "required", None, card("hermes"))
    assert caught.value.param == "tools[0].format.definition"

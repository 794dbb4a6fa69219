"""Calls as models write them in each style, and what parsers must make of them."""

from __future__ import annotations

from typing import NamedTuple

from gateway.postprocess.tools.events import Arguments, CallBegin, CallEnd, Event, Hidden, Text
from gateway.postprocess.tools.styles import STYLES

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "near": {"type": ["string", "null"]},
        "tags": {"type": "array"},
        "dry": {"anyOf": [{"type": "boolean"}, {"const": "maybe"}]},
    },
}
KNOWN = {"weather": WEATHER, "f": {}}


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


def parse(style: str, *pieces: str, cut: bool = False) -> Found:
    parser = STYLES[style](KNOWN)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.close(cut=cut)
    num_chars = sum(len(e.text) if isinstance(e, Text) else e.num_chars for e in events if isinstance(e, Text | Hidden))
    assert num_chars == sum(map(len, pieces)), "every character is text or hidden"
    return collect(events)


def one(arguments: str, text: str = "", *, name: str = "weather", complete: bool = True) -> Found:
    return Found(text, [(name, arguments, complete)])


def coder(*parameters: tuple[str, str], name: str = "weather", tag: str = "tool_call") -> str:
    """Return a call as Qwen3-Coder writes it, or Seed with its own `tag`."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<{tag}>\n<function={name}>\n{inner}</function>\n</{tag}>"


def minimax(*parameters: tuple[str, str], name: str = "weather", more: str = "") -> str:
    """Return a call as MiniMax M2 writes it, with `more` calls between the same tags."""
    inner = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in parameters)
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{inner}</invoke>\n{more}</minimax:tool_call>'


CLOCK = '<invoke name="clock">\n</invoke>\n'  # between MiniMax' tags


def glm(*parameters: tuple[str, str], name: str = "weather", gap: str = "\n") -> str:
    """Return a call as GLM 4.5 writes it."""
    inner = "".join(f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>{gap}" for key, value in parameters)
    return f"<tool_call>{name}{gap}{inner}</tool_call>"


def deepseek(*calls: tuple[str, str]) -> str:
    """Return calls as DeepSeek V3 writes them."""
    written = (f"{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}" for name, arguments in calls)
    return f"{CALLS}{chr(10).join(written)}{CALLS_END}"


def kimi(*calls: tuple[str, str]) -> str:
    """Return calls as Kimi K2 writes them."""
    begin, argument, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    written = (f"{begin}functions.{name}:{at}{argument}{text}{end}" for at, (name, text) in enumerate(calls))
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


def olmo(*calls: str) -> str:
    """Return calls as OLMo 3 writes them."""
    return f"<function_calls>{chr(10).join(calls)}</function_calls>"


CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
VALUES = [
    ("city", 'São "P"\n\nx</par'),
    ("days", "3"),
    ("near", "null"),
    ("tags", '["a", 1]'),
    ("dry", "True"),
    ("x", "7"),
]
MEANT = '{"city": "São \\"P\\"\\n\\nx</par", "days": 3, "near": null, "tags": ["a", 1], "dry": true, "x": 7}'

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
    ("qwen3_coder", f"I look.\n{coder(*VALUES)}\nDone.", Found("I look.\nDone.", [("weather", MEANT, True)])),
    (
        "qwen3_coder",
        coder(name="f") + "\n" + coder(("a", "1"), name="f"),
        Found("", [("f", "{}", True), ("f", '{"a": 1}', True)]),
    ),
    (
        "qwen3_coder",
        coder(("near", "5"), ("days", "many"), ("dry", "maybe")),
        one('{"near": "5", "days": "many", "dry": "maybe"}'),
    ),
    (
        "qwen3_coder",
        coder(("city", "a </tool_call> b </function> c")),
        one('{"city": "a </tool_call> b </function> c"}'),
    ),
    ("qwen3_coder", coder(("city", "")), one('{"city": ""}')),
    ("qwen3_coder", coder(("city", "\n a \n")), one('{"city": "\\n a \\n"}')),
    ("qwen3_coder", coder(("city", "Oslo")).removeprefix("<tool_call>\n"), one('{"city": "Oslo"}')),
    (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>Oslo</parameter></tool_call>",
        one('{"city": "Oslo"}'),
    ),
    ("qwen3_coder", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', one('{"a": 1}', name="f")),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nOs", one('{"city": "Os', complete=False)),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=days>\n3", one('{"days": 3', complete=False)),
    ("qwen3_coder", "<tool_call>\n<function=wea", Found("wea", [])),
    ("qwen3_coder", "a <function and <tool", Found("a <function and <tool", [])),
    (
        "seed_oss",
        f"I look.\n{coder(*VALUES, tag='seed:tool_call')}\nDone.",
        Found("I look.\nDone.", [("weather", MEANT, True)]),
    ),
    ("seed_oss", "a <seed:tool and <tool_call>", Found("a <seed:tool and <tool_call>", [])),
    (
        "minimax_m2",
        f"I look.\n{minimax(*VALUES, more=CLOCK)}\nDone.",
        Found("I look.\nDone.", [("weather", MEANT, True), ("clock", "{}", True)]),
    ),
    ("minimax_m2", "a <invoke and <minimax:tool", Found("a <invoke and <minimax:tool", [])),
    (
        "olmo3",
        "I look.\n" + olmo(r'weather(city="São \"P\"\n", days=3, near=null, tags=["a)", {"x": 1}], dry=true)', "f()"),
        Found(
            "I look.",
            [
                (
                    "weather",
                    r'{"city": "São \"P\"\n", "days": 3, "near": null, "tags": ["a)", {"x": 1}], "dry": true}',
                    True,
                ),
                ("f", "{}", True),
            ],
        ),
    ),
    (
        "olmo3",
        olmo(r"""f(a='it\'s "x" \x41\q', b=(1, 'y', None,), c={'k': False}, d=x + 1,
    g h = -2.5e3)"""),
        one(
            r"""{"a": "it's \"x\" \u0041\\q", "b": [1, "y", null], "c": {"k": false}, "d": "x + 1", "g h": -2.5e3}""",
            name="f",
        ),
    ),
    ("olmo3", olmo('f(a="</function_calls> b\n")'), one(r'{"a": "</function_calls> b\n"}', name="f")),
    ("olmo3", '<function_calls>weather(city="Os', one('{"city": "Os', complete=False)),
    ("olmo3", "<function_calls>weather(days=1", one('{"days": ', complete=False)),
    ("olmo3", "<function_calls>no call</function_calls> at all", Found("no call at all", [])),
    ("glm45", f"I look.\n{glm(*VALUES)}", Found("I look.", [("weather", MEANT, True)])),
    ("glm45", glm(("city", "Oslo"), ("days", "3"), gap=""), one('{"city": "Oslo", "days": 3}')),
    (
        "glm45",
        glm(name="f") + "\n" + glm(("city", "a"), gap=""),
        Found("", [("f", "{}", True), ("weather", '{"city": "a"}', True)]),
    ),
    ("glm45", glm(("city", "a </tool_call> b")), one('{"city": "a </tool_call> b"}')),
    ("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Os", one('{"city": "Os', complete=False)),
    ("glm45", "<tool_call>no call</tool_call> at all", Found("no call at all", [])),
    (
        "deepseek_v3",
        f"I look.{deepseek(('weather', NESTED), ('f', '{}'))}",
        Found("I look.", [("weather", NESTED, True), ("f", "{}", True)]),
    ),
    (
        "deepseek_v31",
        f'{CALLS}{CALL}weather{SEP}{NESTED}{CALL_END}{CALL}function{SEP}{{"a": 1}}{CALL_END}{CALLS_END}',
        Found("", [("weather", NESTED, True), ("function", '{"a": 1}', True)]),
    ),
    (
        "deepseek_v3",
        f'{CALL}function{SEP}f\n```json\n{{"a": "x{CALL_END}{CALLS_END}',
        one('{"a": "x', name="f", complete=False),
    ),
    ("deepseek_v3", f"{CALLS}{CALL}nothing{CALL_END}{CALLS_END} at all", Found("nothing at all", [])),
    (
        "kimi_k2",
        f"I look.{kimi(('weather', NESTED), ('f', '{}'))}",
        Found("I look.", [("weather", NESTED, True), ("f", "{}", True)]),
    ),
    ("kimi_k2", '<|tool_call_begin|>f<|tool_call_argument_begin|> {"a": 1', one('{"a": 1', name="f", complete=False)),
    ("kimi_k2", "<|tool_calls_section_begin|>none<|tool_calls_section_end|>", Found("none", [])),
]

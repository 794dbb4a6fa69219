"""Grammars of custom tools, in llguidance's Lark dialect, made fit to stand inside the grammar of a call.

They are nested (`%lark {...}`), so that their names and what they ignore stay their own. Where a model writes its
arguments as JSON, the text of the tool stands inside a string: then each of its terminals is rewritten to allow the
escaped text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from gateway.edge.schema.quoted_regex import QuotingError, goes_on, in_lark, quoted, unfolded
from wire.messages import Grammar

_STRING = r'"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|[^"\\\x00-\x1f\x7f])*"'
_TOKEN = re.compile(
    rf"""
    (?P<space> [ \t\r\n]+ | (?:\#|//)[^\n]* )
    | (?P<range> {_STRING} [ \t]* \.\. [ \t]* {_STRING} )
    | (?P<string> {_STRING} i? )
    | (?P<regex> /(?:\\.|[^/\\])+/[imslux]* )
    | (?P<import> %import [ \t]+ common [ \t]* (?: \. [ \t]* \w+ (?: [ \t]* -> [ \t]* \w+ )? | \( [\w ,\t]* \) ) )
    | (?P<keyword> %\w+ )
    | (?P<outside> <[^<>\s]+> | @[\w-]+ )
    | (?P<repeated> ~ [ \t]* (?=\d) )
    | (?P<brace> [{{}}] )
    | (?P<name> [!?_]*[A-Za-z][\w-]* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_HEX = re.compile(r"\\x([0-9a-fA-F]{2})")
_DEFINES = re.compile(r"[ \t]*(?:\.\d+|\[[^\]]*\])?[ \t]*:")
MAX_TERMINALS = 64

# What `%import common.NAME` brings: the terminals that Lark's users expect.
_LETTERS, _EXPONENT = "A-Za-z", r"[eE][+-]?[0-9]+"
_DECIMAL = r"([0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = rf"({_DECIMAL}({_EXPONENT})?|[0-9]+{_EXPONENT})"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL,
    "_EXP": _EXPONENT,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"([0-9]+|{_FLOAT})",
    "SIGNED_NUMBER": f"[+-]?([0-9]+|{_FLOAT})",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": f"[{_LETTERS}]",
    "WORD": f"[{_LETTERS}]+",
    "CNAME": f"[_{_LETTERS}][_{_LETTERS}0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}


@lru_cache(maxsize=128)
def nested(syntax: str, definition: str, *, in_json: bool) -> str:
    """Return a grammar or pattern as what stands in a rule's place; takes some ms. Raises QuotingError."""
    if syntax == "regex":
        source = f"start: {in_lark(quoted(definition) if in_json else definition)}"
    else:
        found = read(definition)
        source = _Quoting(found).written() if in_json else definition
    return f"%lark {{\n{source}\n}}"


def nested_input(form: Grammar) -> str:
    """Return the same for a custom tool's format, whose text stands in JSON. Raises QuotingError, with its field."""
    try:
        return nested(form.kind, form.source, in_json=True)
    except QuotingError as error:
        error.field = form.field
        raise


class Token(NamedTuple):
    """A token of a grammar, and the rule or terminal that it helps to define."""

    kind: str
    text: str
    of: str


def read(source: str) -> list[Token]:
    """Take a grammar apart. Raises QuotingError for what has no place in a tool's."""
    found: list[Token] = []
    depth = 0
    of = ""
    for token in _TOKEN.finditer(source):
        kind, text = token.lastgroup or "", token[0]
        if kind in ("keyword", "outside") and text != "%ignore":
            raise QuotingError(f"{text[:40]!r} is not supported in the grammar of a tool")
        if kind == "other" and text in '~"/':
            raise QuotingError("terminals negated by ~ are not supported" if text == "~" else f"{text!r} is not closed")
        if kind == "name" and _DEFINES.match(source, token.end()):
            of = text
        elif kind in ("keyword", "import"):
            of = ""
        depth += (text == "{") - (text == "}") if kind == "brace" else 0
        if depth < 0:
            break
        found.append(Token(kind, text, of))
    if depth:
        raise QuotingError("its braces do not match")
    return found


class _Quoting:
    """Writes a grammar for the escaped texts.

    A terminal that may go on with an escape behind its end is a rule of its own where rules use it: see `goes_on`.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._whole_only = {
            token.of
            for before, token in pairwise(tokens)
            if token.text == "&" or (token.text == "[" and before.text == token.of)  # options are of a whole terminal
        }
        self._imported = {
            name: body for token in tokens if token.kind == "import" for name, body in _brought(token.text)
        }
        terminals = {name: f"{name}: {in_lark(quoted(body))}" for name, body in self._imported.items()}
        terminals |= {token.of: "" for token in tokens if _is_terminal(token.of)}
        if len(terminals) > MAX_TERMINALS:
            raise QuotingError(f"may have {MAX_TERMINALS} terminals at most")
        for token in tokens:
            if token.of in terminals:
                terminals[token.of] += _quoted_token(token)
        others = "\n".join(terminals.values())
        self._rules: dict[str, str] = {}
        used = {token.of for token in tokens if not _is_terminal(token.of)}  # what stands in a rule
        while used:
            parts = {token.text for token in tokens if token.of in used} & terminals.keys()
            used = {name for name in parts - self._whole_only - self._rules.keys() if goes_on(name, others)}
            self._rules |= {name: f"headrace-open-{len(self._rules) + at}" for at, name in enumerate(sorted(used))}
        self._terminals = [f"{name}: {in_lark(quoted(body))}" for name, body in self._imported.items()]

    def written(self) -> str:
        """Return the grammar."""
        added = [*self._terminals, *(self._as_rule(name) for name in self._rules)]
        return "".join((*map(self._token, self._tokens), "\n", "\n".join(added)))

    def _token(self, token: Token) -> str:
        is_rule = bool(token.of) and not _is_terminal(token.of) and token.of not in self._whole_only
        if token.kind == "import":
            return ""
        if is_rule and token.kind == "regex":
            return _part(token.text)
        if is_rule and token.kind == "name":
            return self._rules.get(token.text, token.text)
        return _quoted_token(token)

    def _as_rule(self, name: str) -> str:
        """Write a terminal as a rule."""
        if name in self._imported:
            return f"{self._rules[name]}: {_part(in_lark(self._imported[name]))}"
        tokens = [token for token in self._tokens if token.of == name]
        body = [
            _part(token.text) if token.kind == "regex" else self._rules.get(token.text) or _quoted_token(token)
            for token in tokens[1:]
        ]
        return self._rules[name] + "".join(body)


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _part(text: str) -> str:
    """Write a pattern that stands in a rule: whole, or in parts if it may go on with an escape."""
    pattern, flags = _pattern(text)
    whole = in_lark(quoted(pattern, flags), _shown(flags))
    return unfolded(pattern, flags) if goes_on(whole) else whole


def _quoted_token(token: Token) -> str:
    """Write a token for the escaped texts."""
    kind, text = token.kind, token.text
    if kind == "regex":
        pattern, flags = _pattern(text)
        return in_lark(quoted(pattern, flags), _shown(flags))
    if kind == "range":
        ends = [_value(one) for one in re.findall(_STRING, text)]
        if any(len(one) != 1 for one in ends):
            raise QuotingError("a range of characters needs one at each end")
        return in_lark(quoted("[{}-{}]".format(*(f"\\x{{{ord(one):x}}}" for one in ends))))
    if kind != "string":
        return text
    if text.endswith("i"):
        return in_lark(quoted(re.escape(_value(text[:-1]))), "i")
    return json.dumps(json.dumps(_value(text), ensure_ascii=False)[1:-1])


def _pattern(text: str) -> tuple[str, str]:
    """Return a pattern of Lark and its flags."""
    pattern, _, flags = text[1:].rpartition("/")
    if set(flags) - set("imsu"):
        raise QuotingError(f"the flags {flags!r} of a pattern are not supported")
    return pattern, flags


def _shown(flags: str) -> str:
    return flags.replace("s", "")  # what `.` stands for is written out


def _brought(text: str) -> Iterator[tuple[str, str]]:
    """Yield the terminals that an import brings, by the names that they have here, and their patterns."""
    if "(" in text:
        names = {name: name for name in re.findall(r"\w+", text.partition("(")[2])}
    else:
        name, *alias = re.findall(r"\w+", text.partition(".")[2])
        names = {name: alias[0] if alias else name}
    for name, alias_name in names.items():
        if name not in _COMMON:
            raise QuotingError(f"common.{name[:40]} is not known")
        yield alias_name, _COMMON[name]


def _value(text: str) -> str:
    value: str = json.loads(_HEX.sub(r"\\u00\1", text))
    return value

"""A pattern for texts -> the pattern for the same texts as they stand inside a JSON string, with their escapes.

Only what stands for a character changes; groups, alternatives and repetitions stay. Which characters that JSON escapes
a class holds is asked of the compiler itself. Of control characters a class keeps those that have a short escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from llguidance import LLTokenizer

from wire.grammar import GrammarError, check, start_matcher
from wire.messages import Grammar

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_PLAIN = r'[^"\\\x00-\x1F]'
_ESCAPE = re.compile(
    r"\\(?:[xuU]\{[^}]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[pP](?:\{[^}]*\}|.)|.)", re.DOTALL
)
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?)(?P<end>[:)])))?")
_REPEAT = re.compile(r"(?:[*+?]|\{[\d,]*\})\??")
_FLAGS = re.compile(r"\(\?[a-z-]+[:)]")
_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ANCHORS = frozenset("AzbBG<>")
MAX_CLASSES = 128  # each takes half a millisecond

# An alphabet of bytes, in which one letter tells what may begin.
_BYTES = LLTokenizer("byte")


class QuotingError(ValueError):
    """A pattern or grammar that cannot be written inside a JSON string: what of it, and in which field."""

    field = "tools"


class Piece(NamedTuple):
    """A piece of a pattern as it stands, and as it is quoted."""

    kind: Literal["atom", "open", "close", "or", "repeat"]
    written: str
    quoted: str


def quoted(pattern: str, flags: str = "") -> str:
    """Return the pattern for the escaped texts. Raises QuotingError; what is no pattern may come back as it is."""
    return "".join(piece.quoted for piece in pieces(pattern, flags))


def pieces(pattern: str, flags: str = "") -> list[Piece]:
    """Take a pattern apart, each character of its texts a piece. Raises QuotingError."""
    at = 0
    dot_is_all = ["s" in flags]
    found: list[Piece] = []
    classes: set[str] = set()
    while at < len(pattern):
        char = pattern[at]
        end = at + 1
        if char == "\\":
            escape = _ESCAPE.match(pattern, at)
            end = escape.end() if escape else end
            found.append(Piece("atom", pattern[at:end], _escape(pattern[at:end])))
        elif char == "[":
            end = _class_end(pattern, at)
            classes.add(pattern[at:end])
            if len(classes) > MAX_CLASSES:
                raise QuotingError(f"may have {MAX_CLASSES} different classes of characters at most")
            found.append(Piece("atom", pattern[at:end], _class(pattern[at:end])))
        elif char == ".":
            found.append(Piece("atom", char, _class(r"[\s\S]" if dot_is_all[-1] else r"[^\n]")))
        elif char == "(":
            end, kind = _group(pattern, at, dot_is_all)
            found.append(Piece(kind, pattern[at:end], pattern[at:end]))
        elif char == ")":
            if len(dot_is_all) > 1:
                dot_is_all.pop()
            found.append(Piece("close", char, char))
        elif repeat := _REPEAT.match(pattern, at):
            end = repeat.end()
            found.append(Piece("repeat", repeat[0], repeat[0]))
        else:
            found.append(
                Piece("or" if char == "|" else "atom", char, _literal(char) if char in '"\n\r\t\f\b' else char)
            )
        at = end
    return found


def unfolded(pattern: str, flags: str = "") -> str:
    """Return the pattern for the escaped texts as an expression of Lark, of parts that do not go on with an escape.

    Raises QuotingError where the pattern says what only a whole one can.
    """
    found = pieces(pattern, flags)
    shown = "".join(flag for flag in flags if flag in "iu")
    if any(piece.quoted in "^$" or _FLAGS.match(piece.written) for piece in found):
        raise QuotingError(f"the pattern {pattern[:40]!r} is not supported where a model writes the text as JSON")
    head, tail = _parted(_bared(found))
    before = "".join(piece.quoted for piece in head)
    runs = len(tail) == 2 and tail[1].quoted in ("*", "+")
    if before and not goes_on(in_lark(before, shown)):
        return f"({in_lark(before, shown)}{_parts(tail, shown, runs=runs)})"
    return f"({_parts(head, shown)}{_parts(tail, shown, runs=runs)})"


def _parts(found: list[Piece], flags: str, *, runs: bool = False) -> str:
    """Write pieces each by itself; with `runs`, as many plain characters as there are may be one part."""
    return "".join(piece.quoted if piece.kind == "repeat" else f" {_part(piece, flags, runs)}" for piece in found)


def _bared(found: list[Piece]) -> list[Piece]:
    """Leave out a group that is round the whole pattern."""
    if len(found) > 1 and found[0].kind == "open" and len(list(_outside(found))) == 1:
        return _bared(found[1:-1])
    return found


def _parted(found: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Part what is repeated at the end of a pattern from what stands before it."""
    depth = 0
    if len(found) < 2 or found[-1].kind != "repeat" or any(piece.kind == "or" for piece in _outside(found)):
        return [], found
    for at in range(len(found) - 2, -1, -1):
        depth += (found[at].kind == "close") - (found[at].kind == "open")
        if not depth:
            return found[:at], found[at:]
    return [], found


def _outside(found: list[Piece]) -> Iterator[Piece]:
    """Yield the pieces that stand in no group."""
    depth = 0
    for piece in found:
        depth += (piece.kind == "open") - (piece.kind == "close")
        if not depth:
            yield piece


def _part(piece: Piece, flags: str, runs: bool) -> str:
    if piece.kind != "atom":
        return "(" if piece.kind == "open" else piece.quoted
    plain, bar, escapes = piece.quoted.removeprefix("(?:").partition("|(?-i:")
    if not bar:
        return in_lark(piece.quoted, flags)
    return f"({in_lark(plain + '+' * runs, flags)} | {in_lark('(?-i:' + escapes[:-1])})"


def in_lark(pattern: str, flags: str = "") -> str:
    r"""Write a pattern as Lark does; `\/` is a slash that does not end it."""
    escaped = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], pattern, flags=re.DOTALL)
    return f"/{escaped}/{flags}"


def _group(pattern: str, at: int, dot_is_all: list[bool]) -> tuple[int, Literal["open", "atom"]]:
    """Take the beginning of a group, or flags for the rest of one; return where it ends, and which it is."""
    opened = _GROUP.match(pattern, at)
    assert opened is not None
    on, _, off = (opened["flags"] or "").partition("-")
    if set(on + off) - set("imsu"):
        raise QuotingError(f"the flags {opened['flags']!r} of a pattern are not supported")
    is_all = "s" in on or (dot_is_all[-1] and "s" not in off)
    if opened["end"] == ")":
        dot_is_all[-1] = is_all
        return opened.end(), "atom"
    dot_is_all.append(is_all)
    return opened.end(), "open"


def _escape(escape: str) -> str:
    """Write an escape that stands outside of a class."""
    name = escape[1:2]
    if name in _CHARACTERS:
        return _literal(_CHARACTERS[name])
    if not name.isalnum():
        return _literal(name) if name in '"\\' else escape
    return escape if name in _ANCHORS else _class(f"[{escape}]", escape)


def _literal(char: str) -> str:
    return rf"(?-i:\\{re.escape(_SHORT[ord(char)])})"


@lru_cache(maxsize=2_048)
def _class(chars: str, written: str = "") -> str:
    """Write a class of characters; one that JSON escapes nothing of stays as it was `written`."""
    try:
        first = _first_bytes(Grammar(kind="regex", source=chars))
    except GrammarError as error:
        raise QuotingError(str(error)) from None
    escaped = [byte for byte in first if byte in _SHORT or byte < 0x20]
    if not escaped:
        return written or chars
    options = [f"[{chars}&&{_PLAIN}]"] if len(escaped) < len(first) else []
    short = "".join(re.escape(_SHORT[byte]) for byte in escaped if byte in _SHORT)
    if short:
        options.append(rf"(?-i:\\[{short}])")
    if not options:
        options = [rf"(?-i:\\u{byte:04x})" for byte in escaped]
    return f"(?:{'|'.join(options)})"


def _first_bytes(grammar: Grammar) -> bytes:
    """Return the bytes with which a grammar's texts may begin. Raises GrammarError."""
    matcher = start_matcher(grammar, _BYTES)
    bits = int.from_bytes(matcher.compute_bitmask(), "little")
    check(matcher)
    return bytes(byte for byte in range(256) if bits >> byte & 1)


@lru_cache(maxsize=256)  # of sources as long as a client may write
def goes_on(terminal: str, others: str = "") -> bool:
    r"""Tell whether a whole text of a terminal may go on with an escape of the same terminal.

    A lexer that is greedy takes the backslash for that, and cannot turn back when another escape was meant.
    `others` defines what the terminal is made of.
    """
    source = f"start: BOTH\nBOTH: ONE /\\\\(?s:.+)/ & ONE\nONE: {terminal}\n{others}"
    try:
        return bool(_first_bytes(Grammar(kind="lark", source=source)))
    except GrammarError:
        return False  # it is told better elsewhere


def _class_end(pattern: str, at: int) -> int:
    """Return where a class ends, which may hold others."""
    depth = 0
    place = at
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 1
        elif char == "[":
            depth += 1
            opened = re.compile(r"\[\^?\]?").match(pattern, place)
            assert opened is not None
            place = opened.end() - 1  # a bracket that closes at the very beginning is one of the characters
        elif char == "]":
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    raise QuotingError("a class of characters does not end")

"""The harmony format of OpenAI's gpt-oss models: an answer is a row of messages, each headed by its channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

A call's header names its recipient, in the part of the role or of the channel: `commentary to=functions.NAME
<|constrain|>json`. A prompt ends behind `<|start|>assistant`. Source: github.com/openai/harmony, docs/format.md.
"""

from __future__ import annotations

import re
from enum import Enum

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
TAGS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)
STOPS = (RETURN, CALL)
"""What ends an answer."""

_FUNCTIONS = b"functions."
_SAID = frozenset({b"", b"final", b"commentary"})
_EVERYBODY = frozenset({b"user", b"assistant", b"all"})
_MOST = 512  # bytes of a header that are read; names have 64
_CHANNEL = CHANNEL.encode()
_PARTS = re.compile(f"({re.escape(CHANNEL)}|{re.escape(CONSTRAIN)})".encode())
_RECIPIENT = re.compile(rb"\bto=(\S+)")
_WORD = re.compile(rb"\s*(?!to=)([A-Za-z_]*)")
_NAME = re.compile(rb"[\w.-]{1,128}")


class Kind(Enum):
    """Where a row of messages stands: in a header, in the text of a message, or behind its end."""

    HEADER = 0
    BETWEEN = 1
    ANSWER = 2
    REASONING = 3
    CALL = 4


def speaks_harmony(template: str | None) -> bool:
    """Tell by a chat template whether a model writes in this format."""
    return all(tag in (template or "") for tag in (START, CHANNEL, MESSAGE))


class MessageReader:
    """Follows a row of messages: `tag` takes control tokens, `text` the bytes between them.

    Nothing is an error. What is no header opens no message; a tag without sense where it stands means nothing; text for
    nobody who is known here is reasoning. `name` is the function that the message calls.
    """

    __slots__ = ("_header", "kind", "name")

    def __init__(self, kind: Kind = Kind.HEADER) -> None:
        self.kind = kind
        self.name = ""
        self._header = b""

    def tag(self, tag: str) -> None:
        """Take a control token, by its text."""
        if tag == START:
            self.kind, self._header = Kind.HEADER, b""
        elif tag == CHANNEL:
            self._header = self._header + _CHANNEL if self.kind is Kind.HEADER else _CHANNEL
            self.kind = Kind.HEADER
        elif tag == CONSTRAIN and self.kind is Kind.HEADER:
            self._header += tag.encode()
        elif tag == MESSAGE and self.kind in (Kind.HEADER, Kind.BETWEEN):
            self.kind, self.name = _read(self._header if self.kind is Kind.HEADER else b"")
        elif tag in (END, RETURN, CALL):
            self.kind = Kind.BETWEEN

    def text(self, raw: bytes) -> None:
        """Take text; that of a message's inside says nothing about where the row stands."""
        if self.kind is Kind.HEADER:
            self._header += raw[: max(0, _MOST - len(self._header))]


def _read(header: bytes) -> tuple[Kind, str]:
    """Return what a header opens, and the function it calls."""
    role, *marked = _PARTS.split(header)
    parts = list(zip(marked[::2], marked[1::2], strict=True))
    channel = next((_first_word(text) for tag, text in reversed(parts) if tag == _CHANNEL), b"")
    told = [role, *(text for tag, text in parts if tag == _CHANNEL)]
    recipients = [found for text in told for found in _RECIPIENT.findall(text)]
    recipient = recipients[-1] if recipients else b""
    if _first_word(role) not in (b"", b"assistant"):
        return Kind.REASONING, ""  # somebody else's words, made up
    name = recipient.removeprefix(_FUNCTIONS)
    if name != recipient and _NAME.fullmatch(name):
        return Kind.CALL, name.decode()
    if recipient and recipient not in _EVERYBODY:
        return Kind.REASONING, ""  # a tool of the model's own, which nobody runs
    return (Kind.ANSWER if channel in _SAID else Kind.REASONING), ""


def _first_word(text: bytes) -> bytes:
    found = _WORD.match(text)
    return found[1] if found else b""

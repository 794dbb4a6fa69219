"""Harmony (gpt-oss): what is said and what is called, in a row of messages whose frame nobody sees.

Control tokens come as characters that no text has, so that a text that only spells one is text. Reasoning comes by
another way; of what stands here all is hidden but the messages for the user and the arguments of calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gateway.postprocess.tools.call_reader import CallReader
from gateway.postprocess.tools.events import Arguments, CallEnd, Event, Gap, Hidden, Text
from gateway.postprocess.tools.parser import call_id
from wire.harmony import TAGS, Kind, MessageReader

_STAND_INS = {tag: chr(0xFDD0 + at) for at, tag in enumerate(TAGS)}  # noncharacters, kept for such inner use
_TAG_OF = {char: tag for tag, char in _STAND_INS.items()}
_TAG = re.compile(f"([{''.join(_TAG_OF)}])")
_GAP = "\n\n"


class HarmonyParser:
    """One answer's. Without `known` functions nobody has offered any, and calls are hidden, too."""

    def __init__(self, known: Collection[str] = ()) -> None:
        self._takes_calls = bool(known)
        self._row = MessageReader()
        self._call: CallReader | None = None
        self._is_blank = True  # what was read of the call's arguments
        self._has_spoken = False
        self._is_fresh = False  # the message for the user: nothing of it was said
        self._num_hidden = 0  # characters that are not told yet
        self._events: list[Event] = []

    def go_on(self) -> None:
        """Begin inside an answer for the user: the prompt holds its header and its first words."""
        self._row = MessageReader(Kind.ANSWER)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the control tokens."""
        return TAGS

    def written(self, tag: str) -> str:
        """Return the character that stands for a control token."""
        return _STAND_INS[tag]

    def call_id(self, name: str) -> str:
        """Return an id in OpenAI's form; templates do not show it."""
        return call_id(name)

    def feed(self, text: str) -> list[Event]:
        """Take text."""
        for at, piece in enumerate(_TAG.split(text)):
            if at % 2:
                self._tag(_TAG_OF[piece])
            elif piece:
                self._text(piece)
        return self._collect()

    def close(self, *, cut: bool = False) -> list[Event]:
        """End the text."""
        if self._call is not None:
            self._end_call(cut=cut)
        self._tell_hidden()
        return self._collect()

    def _tag(self, tag: str) -> None:
        self._num_hidden += 1
        before = self._row.kind
        self._row.tag(tag)
        kind = self._row.kind
        if self._call is not None and kind is not Kind.CALL:
            self._end_call()
        if kind is Kind.CALL and before is not Kind.CALL and self._takes_calls:
            self._tell_hidden()
            self._call, self._is_blank = CallReader(name=self._row.name), True
            self._take(self._call)
        self._is_fresh = self._is_fresh or (kind is Kind.ANSWER and before is not Kind.ANSWER)

    def _text(self, text: str) -> None:
        if self._row.kind is Kind.ANSWER:
            self._say(text)
            return
        self._num_hidden += len(text)
        self._row.text(text.encode())
        if self._call is not None:
            text = text.lstrip() if self._is_blank else text
            self._is_blank = self._is_blank and not text
            self._call.feed(text, 0, len(text))
            self._take(self._call)

    def _say(self, text: str) -> None:
        if self._is_fresh and self._has_spoken:
            self._num_hidden -= len(_GAP)  # at least an end and a beginning stand between two messages
            self._tell_hidden()
            self._events.append(Gap(_GAP))
        self._tell_hidden()
        self._events.append(Text(text))
        self._is_fresh, self._has_spoken = False, True

    def _take(self, call: CallReader) -> None:
        self._tell_hidden()
        self._events += call.events
        call.events = []

    def _end_call(self, *, cut: bool = False) -> None:
        assert self._call is not None
        none = self._is_blank and not cut
        if none:
            self._events.append(Arguments("{}"))
        self._events.append(CallEnd(none or self._call.done))
        self._call = None

    def _tell_hidden(self) -> None:
        if self._num_hidden:
            self._events.append(Hidden(self._num_hidden))
        self._num_hidden = 0

    def _collect(self) -> list[Event]:
        events, self._events = self._events, []
        return events

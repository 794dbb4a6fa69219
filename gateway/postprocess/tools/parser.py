"""Finds tool calls in an answer as it streams.

Held back is what may still become a call or a tag, and white space before it; all else goes out at once. Whatever way
the text is cut, the same comes out. White space round calls belongs to the markup. Text between tags that turns out to
be no call is answer text, without the tags.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import ClassVar, Protocol

from gateway.postprocess.tools.call_reader import CallReader
from gateway.postprocess.tools.element_reader import ElementReader
from gateway.postprocess.tools.events import CallEnd, Event, Hidden, Text
from gateway.postprocess.tools.overlap import overlap
from gateway.postprocess.tools.python_reader import PythonReader

Reader = CallReader | ElementReader | PythonReader

_SEPARATORS = frozenset(" \t\r\n[],;}`")


class ToolParser(Protocol):
    """One answer's parser. `tags` are the texts that may come as control tokens, which have no text of their own."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the style's tags."""

    def feed(self, text: str) -> list[Event]:
        """Take answer text; returns what is sure by now."""

    def close(self, *, cut: bool = False) -> list[Event]:
        """End the text, which may have been `cut` in the middle; returns what was held."""

    def go_on(self) -> None:
        """Begin within an answer that the prompt has begun."""

    def written(self, tag: str) -> str:
        """Return what stands in the text for a tag that came as a control token."""

    def call_id(self, name: str) -> str:
        """Return the id of the call of this name, in the form that the model's template takes back."""


def call_id(name: str) -> str:
    """Return an id in OpenAI's form."""
    return f"call_{blake2b(name.encode(), digest_size=12).hexdigest()}"


class JsonToolParser:
    """Calls as JSON objects between tags; a style says which tags, and whether a call may come without any.

    Without `closes` the calls end with the first text that is none. `leads` may stand before the brace of a call that
    comes without a tag, at the very beginning; such an object is a call only if it names a known function.
    """

    opens: ClassVar[tuple[str, ...]] = ()
    closes: ClassVar[tuple[str, ...]] = ()
    inner: ClassVar[tuple[str, ...]] = ()
    leads: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, known: Collection[str] = ()) -> None:
        self._known = known
        self._buffer = ""
        self._at = 0  # of the buffer, read by a call reader that is not sure yet
        self._events: list[Event] = []
        self._state: Callable[[bool], bool] = self._answer
        self._reader: Reader = CallReader()
        self._bare = False
        self._is_beginning = True
        self._has_spoken = False
        self._trims = False  # white space after a call

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the style's tags."""
        return self.opens + self.closes + self.inner

    def call_id(self, name: str) -> str:
        """Return an id in OpenAI's form."""
        return call_id(name)

    def go_on(self) -> None:
        """Look for calls as ever."""

    def written(self, tag: str) -> str:
        """Return the tag as it is."""
        return tag

    def feed(self, text: str) -> list[Event]:
        """Take answer text."""
        self._buffer += text
        self._run(final=False)
        return self._collect()

    def close(self, *, cut: bool = False) -> list[Event]:
        """End the text. Of one that was cut nothing is said that may have become a tag or a call."""
        if cut:
            self._break_off()
            return self._collect()
        self._run(final=True)
        if self._state == self._call:
            self._end_call()
            self._run(final=True)
        return self._collect()

    def _run(self, *, final: bool) -> None:
        while self._buffer and self._state(final):
            pass

    def _collect(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _break_off(self) -> None:
        if self._state == self._call and self._reader.name is None and not self._reader.may_be_call:
            self._at, self._is_beginning, self._state = 0, False, self._answer
            self._run(final=False)
        if self._state == self._call and self._reader.name is not None:
            self._end_call()
        elif self._state == self._answer and not self._trims:
            is_lead = self._is_beginning and self.leads is not None and self._lead() is None
            at = 0 if is_lead else self._open_tag_at()
            self._say(len(self._buffer) if not self._buffer[at:].strip() else len(self._buffer[:at].rstrip()))
        self._hide(len(self._buffer))

    # --- outside of calls ---

    def _answer(self, final: bool) -> bool:
        """Pass text on up to a tag. Returns whether there is more to do."""
        if self._trims:
            space = _after_space(self._buffer, 0)
            if space == len(self._buffer) and not final:
                return False
            if space == len(self._buffer) or not self._has_spoken:  # else it parts what is said before and after
                self._hide(space)
            self._trims = False
        if self._is_beginning and self.leads is not None:
            begins = self._lead()
            if begins is None and not final:
                return False
            self._is_beginning = False
            if begins:
                self._begin(begins, bare=True)
                return True
        at, tag = self._first_tag()
        if not tag:
            self._say(len(self._buffer) if final else len(self._buffer[: self._open_tag_at()].rstrip()))
            return False
        if tag in self.opens:
            self._say(len(self._buffer[:at].rstrip()))
            self._hide(_after_space(self._buffer, 0) + len(tag))
            self._is_beginning, self._bare, self._state = False, False, self._between_calls
        else:  # a stray closing tag
            self._say(at)
            self._hide(len(tag))
        return True

    def _lead(self) -> int | None:
        """Return where a call without a tag begins, 0 if there is none, None while that is open."""
        assert self.leads is not None
        at = _after_space(self._buffer, 0)
        for lead in self.leads:
            if self._buffer.startswith(lead, at):
                at = _after_space(self._buffer, at + len(lead))
            elif lead.startswith(self._buffer[at:]):
                return None
        rest = self._buffer[at : at + 1]
        return None if not rest else at + 1 if rest == "{" else 0

    def _first_tag(self) -> tuple[int, str]:
        found = [(self._buffer.find(tag), tag) for tag in self.opens + self.closes]
        return min(((at, tag) for at, tag in found if at >= 0), key=lambda hit: (hit[0], -len(hit[1])), default=(0, ""))

    def _open_tag_at(self) -> int:
        """Return where a tag may have begun that is not whole yet."""
        return len(self._buffer) - overlap(self._buffer, self.opens + self.closes)

    # --- between tags ---

    def _between_calls(self, final: bool) -> bool:
        tags = self.opens + self.closes
        tag = next((tag for tag in tags if self._buffer.startswith(tag)), "")
        if not tag and not final and any(tag.startswith(self._buffer) for tag in tags):
            return False
        if tag in self.closes:
            self._trims, self._state = True, self._answer
        if tag or self._buffer[0] in _SEPARATORS:
            self._hide(len(tag) or 1)
        elif self._buffer[0] == "{":
            self._begin(1, bare=self._bare)
        else:
            return self._other(final)
        return True

    def _other(self, final: bool) -> bool:
        """Take what is neither a call nor a closing tag: the answer goes on."""
        del final
        self._trims, self._state = True, self._answer
        return True

    def _begin(self, at: int, *, bare: bool, reader: Reader | None = None) -> None:
        """Read a call from buffer[at:]."""
        self._bare = bare
        self._reader = reader or CallReader(self._known if bare else None)
        self._at, self._state = at, self._call

    # --- inside a call ---

    def _call(self, final: bool) -> bool:
        reader = self._reader
        end, closes = self._call_end(final)
        self._at = reader.feed(self._buffer, self._at, end)
        if closes and reader.in_string:
            goes_on = self._goes_on(end, final)
            if goes_on:
                self._at = reader.feed(self._buffer, self._at, end + 1)
            closes = goes_on is False
            final = final or bool(goes_on)
        if closes:
            reader.close()
        self._take()
        if closes or reader.done or reader.rejected:
            self._end_call()
            return True
        return final and self._at < len(self._buffer)

    def _call_end(self, final: bool) -> tuple[int, bool]:
        """Return how far the reader may go, and whether a closing tag stands there."""
        found = [at for tag in self.closes if (at := self._buffer.find(tag, self._at)) >= 0]
        if found:
            return min(found), True
        return len(self._buffer) - (0 if final else overlap(self._buffer, self.closes)), False

    def _goes_on(self, at: int, final: bool) -> bool | None:
        """Tell whether a closing tag inside a string is part of it: text follows that begins no call. None: open."""
        tag = next(tag for tag in self.closes if self._buffer.startswith(tag, at))
        rest = self._buffer[at + len(tag) :].lstrip()
        next_tags = self.opens + self.closes[1:]  # the first one ends a call, those behind it end all calls
        if rest and not any(rest.startswith(tag) or tag.startswith(rest) for tag in next_tags):
            return True
        return False if final or any(rest.startswith(tag) for tag in next_tags) else None

    def _take(self) -> None:
        """Pass on what the reader is sure of."""
        if self._reader.name is not None:
            self._hide(self._at)
            self._at = 0
            self._events += self._reader.events
            self._reader.events = []

    def _end_call(self) -> None:
        if not self._reader.done:
            self._reader.break_off()
        self._take()
        if self._reader.name is None:  # no call after all: what was held is answer text
            self._at, self._state = 0, self._answer
        else:
            self._events.append(CallEnd(self._reader.done))
            self._state = self._between_calls

    def _say(self, num_chars: int) -> None:
        if num_chars:
            self._events.append(Text(self._buffer[:num_chars]))
            self._buffer = self._buffer[num_chars:]
            self._has_spoken = True
            self._is_beginning = False

    def _hide(self, num_chars: int) -> None:
        if num_chars:
            self._events.append(Hidden(num_chars))
            self._buffer = self._buffer[num_chars:]


def _after_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())

"""Splits an answer's text into what is said and the calls that are made; arguments pass the safety rules of answers."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.postprocess.delta import CallRef, TextDelta
from gateway.postprocess.safety.filter import SafetyFilter
from gateway.postprocess.safety.hit import Delay, Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from gateway.postprocess.tools.events import Arguments, CallBegin, CallEnd, Gap, Hidden, Text
from gateway.postprocess.tools.free_input import FreeInput
from gateway.postprocess.tools.parser import ToolParser
from wire.messages import ToolForm

NO_FORMS: Mapping[str, ToolForm] = {}


class CallSplitter:
    """One answer's, `name` being its own: another edge that goes on with it gives its calls the same ids.

    `one_call`: nothing is taken after the first whole call; `over` tells that it came.
    `hidden` lists the stretches of the text that are no part of what is said. `forms`: see `wire.messages.Request`; of
    a call of a custom tool the free text comes out.
    """

    def __init__(
        self,
        parser: ToolParser,
        safety: SafetyPolicy | None = None,
        *,
        name: str,
        one_call: bool = False,
        forms: Mapping[str, ToolForm] = NO_FORMS,
    ) -> None:
        self._parser = parser
        self._name = name
        self._forms = forms
        self._free: FreeInput | None = None
        self._policy = safety if safety and safety.has_rules("tool") else None
        self._safety: SafetyFilter | None = None
        self._one_call = one_call
        self._call: CallRef | None = None
        self._num_calls = self._num_complete = 0
        self._num_chars = 0
        self._num_hidden = 0
        self._hits: list[Hit] = []
        self.delays: list[Delay] = []
        self._cuts: list[tuple[int, int]] = []  # characters said before a hidden stretch, hidden up to its end
        self.hidden: list[tuple[int, int]] = []
        self.over = False
        self.blocked = False

    def control_texts(self, control: Mapping[str, int]) -> dict[int, bytes]:
        """Return what stands in the text for control tokens, which have none of their own."""
        return {token_id: self._parser.written(tag).encode() for tag, token_id in control.items()}

    @property
    def called(self) -> bool:
        """Tell whether calls were made, all of them whole."""
        return 0 < self._num_calls == self._num_complete

    @property
    def hits(self) -> list[Hit]:
        """Return the matches of safety rules in arguments."""
        return self._hits + (self._safety.hits if self._safety else [])

    def feed(self, text: str, *, final: bool = False, cut: bool = False) -> list[str | TextDelta]:
        """Take text, the last of it, which may be cut; returns pieces of what is said, and tool deltas, in order."""
        if self.over or self.blocked:
            return []
        parts: list[str | TextDelta] = []
        for event in self._parser.feed(text) + (self._parser.close(cut=cut) if final else []):
            if isinstance(event, Text):
                self._num_chars += len(event.text)
                parts.append(event.text)
            elif isinstance(event, Hidden):
                self._hide(event.num_chars)
            elif isinstance(event, Gap):
                parts.append(self._fill(event.text))
            elif isinstance(event, CallBegin):
                parts.append(self._begin(event.name))
            elif isinstance(event, Arguments):
                parts += self._argue(event.text)
            elif isinstance(event, CallEnd):
                parts += self._end(event.complete)
            if self.over or self.blocked:
                break
        return parts

    def position(self, num_said: int) -> int:
        """Return how far in the text so many said characters reach, with the hidden ones before and right behind."""
        return num_said + max((total for at, total in self._cuts if at <= num_said), default=0)

    def _hide(self, num_chars: int) -> None:
        start = self._num_chars + self._num_hidden
        self._num_hidden += num_chars
        if self.hidden and self.hidden[-1][1] == start:
            start = self.hidden.pop()[0]
            self._cuts.pop()
        self.hidden.append((start, self._num_chars + self._num_hidden))
        self._cuts.append((self._num_chars, self._num_hidden))

    def _fill(self, text: str) -> str:
        """Say what has no token of its own."""
        start = self._num_chars + self._num_hidden
        self._num_chars += len(text)
        self.hidden.append((start, start + len(text)))
        self._cuts.append((self._num_chars, self._num_hidden))
        return text

    def _begin(self, name: str) -> TextDelta:
        call_id = self._parser.call_id(f"{self._name}:{self._num_calls}")
        form = self._forms.get(name)
        self._call = CallRef(self._num_calls, call_id, name, form)
        self._free = FreeInput() if form is not None and form.custom else None
        self._num_calls += 1
        if self._policy:
            self._safety = SafetyFilter(self._policy, "tool", is_json=self._free is None)
            self.delays.append(self._safety.delay)
        return TextDelta(kind="tool", text="", call=self._call)

    def _argue(self, text: str, *, final: bool = False) -> list[TextDelta]:
        if self._free:
            text = self._free.feed(text, final=final)
        if self._safety:
            text = self._safety.feed(text, final=final)
            self.blocked = self._safety.blocked_by is not None
        return [TextDelta(kind="tool", text=text, call=self._call)] if text else []

    def _end(self, complete: bool) -> list[TextDelta]:
        rest = self._argue("", final=True) if self._safety or self._free else []
        self._hits += self._safety.hits if self._safety else []
        self._safety = None
        self._num_complete += complete and not self.blocked
        self.over = self._one_call and complete
        return rest

"""One phase's text of a choice: bytes in, what may be shown out.

The text is detokenized, parted from tool calls, then stopped, then made safe.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from gateway.postprocess.delta import TextDelta
from gateway.postprocess.detokenizer import Detokenizer
from gateway.postprocess.logprobs import LogprobLedger
from gateway.postprocess.safety.filter import SafetyFilter
from gateway.postprocess.safety.hit import Delay, Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from gateway.postprocess.stop import StopMatcher
from gateway.postprocess.tools.splitter import CallSplitter
from wire.messages import TokenLogprob


class Lane:
    """The answer or the reasoning of a choice. While `exempt` is set, its text ends no stop string."""

    def __init__(
        self,
        kind: Literal["answer", "reasoning"],
        *,
        stop: tuple[str, ...] = (),
        shows_stop: bool = False,
        safety: SafetyPolicy | None = None,
        ledger: LogprobLedger | None = None,
        calls: CallSplitter | None = None,
    ) -> None:
        self.kind = kind
        self._calls = calls
        self._num_said = 0
        self._exempt_until = 0
        self.exempt = False
        self._detokenizer = Detokenizer()
        self._stop = StopMatcher(stop, shown=shows_stop) if stop else None
        self._safety = SafetyFilter(safety, kind) if safety and safety.has_rules(kind) else None
        self._ledger = ledger
        self._is_plain = not (self._stop or self._safety or ledger or calls)  # nobody looks at the text

    @property
    def finish_reason(self) -> str | None:
        """Return why this text ended by itself, if it did: a stop string, a safety rule, or the only call allowed."""
        if self._is_plain:
            return None
        if (self._safety and self._safety.blocked_by is not None) or (self._calls and self._calls.blocked):
            return "content_filter"
        if self.stop_string is not None:
            return "stop"  # also where the same token goes on with a whole call
        return "tool_calls" if self._calls and self._calls.over else None

    @property
    def called(self) -> bool:
        """Tell whether this text made tool calls, all of them whole."""
        return self._calls is not None and self._calls.called

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended this text."""
        return self._stop.hit if self._stop else None

    @property
    def delays(self) -> list[Delay]:
        """Return how long text and arguments of calls were held back for the safety rules, if there are any."""
        return ([self._safety.delay] if self._safety else []) + (self._calls.delays if self._calls else [])

    @property
    def hits(self) -> list[Hit]:
        """Return the matches of safety rules so far."""
        return (self._safety.hits if self._safety else []) + (self._calls.hits if self._calls else [])

    def feed(self, raw: bytes, logprob: TokenLogprob | None) -> list[TextDelta]:
        """Take a token's bytes (those of this phase)."""
        if self._is_plain:
            text = self._detokenizer.feed(raw)
            return [TextDelta(kind=self.kind, text=text)] if text else []
        start, pending = self._detokenizer.num_chars, self._detokenizer.pending
        text = self._detokenizer.feed(raw)
        if self._ledger and logprob:
            end = self._detokenizer.num_chars + bool(self._detokenizer.pending)
            self._ledger.add(logprob, raw, pending=pending, start=start, end=end)
        return self._part(text)

    def break_text(self) -> list[TextDelta]:
        """Take note of a tag: a character cannot go on behind it."""
        text = self._detokenizer.flush()
        return self._part(text) if text else []

    def close(self, *, cut: bool = False) -> list[TextDelta]:
        """Let go what is held at the end of the text, which may have been `cut` in the middle of a call."""
        return self._part(self._detokenizer.flush(), final=True, cut=cut)

    def _part(self, text: str, *, final: bool = False, cut: bool = False) -> list[TextDelta]:
        if self.exempt:
            self._exempt_until = self._detokenizer.num_chars
        if self._calls is None:
            return self._pass(text, final=final)
        deltas: list[TextDelta] = []
        for part in self._calls.feed(text, final=final, cut=cut):
            if self.stop_string is not None or (self._safety and self._safety.blocked_by is not None):
                break
            deltas += self._pass(part) if isinstance(part, str) else [part]
        return deltas + self._pass("", final=final)

    def _pass(self, text: str, *, final: bool = False) -> list[TextDelta]:
        num_exempt = self._num_exempt(text) if self._exempt_until else 0
        self._num_said += len(text)
        num_chars = self._num_said
        hidden: list[tuple[int, int]] = []
        if self._stop:
            text = self._stop.feed(text, num_exempt)
            if final and self._stop.hit is None:
                text += self._stop.close()
            final = final or self._stop.hit is not None
            num_chars = self._stop.num_chars
        if self._safety:
            text = self._safety.feed(text, final=final)
            final = final or self._safety.blocked_by is not None
            num_chars, hidden = self._safety.num_chars, self._safety.hidden
        if self._calls and self._ledger:
            place = self._calls.position
            hidden = [*self._calls.hidden, *((place(start), place(end - 1) + 1) for start, end in hidden)]
            num_chars = place(num_chars)
        entries = self._ledger.release(num_chars, hidden, last=final) if self._ledger else ()
        return [TextDelta(kind=self.kind, text=text, logprobs=entries)] if text or entries else []

    def _num_exempt(self, text: str) -> int:
        """Return how many characters of what is said next are exempt: they may have been held since they came."""
        said = range(self._num_said, self._num_said + len(text))
        return bisect_left(said, self._exempt_until, key=self._calls.position if self._calls else None)

"""One phase's text of a choice: bytes in, text that may be shown out; detokenized, then stopped, then made safe."""

from __future__ import annotations

from typing import Literal

from gateway.postprocess.detokenizer import Detokenizer
from gateway.postprocess.logprobs import LogprobEntry, LogprobLedger
from gateway.postprocess.safety.filter import Hit, SafetyFilter
from gateway.postprocess.safety.policy import SafetyPolicy
from gateway.postprocess.stop import StopMatcher
from wire.messages import TokenLogprob


class Lane:
    """The answer or the reasoning of a choice."""

    def __init__(
        self,
        kind: Literal["answer", "reasoning"],
        *,
        stop: tuple[str, ...] = (),
        safety: SafetyPolicy | None = None,
        ledger: LogprobLedger | None = None,
    ) -> None:
        self.kind = kind
        self._detokenizer = Detokenizer()
        self._stop = StopMatcher(stop) if stop else None
        self._safety = SafetyFilter(safety, kind) if safety and safety.has_rules(kind) else None
        self._ledger = ledger

    @property
    def finish_reason(self) -> str | None:
        """Return why this text ended by itself, if it did: a stop string, or a safety rule."""
        if self._safety and self._safety.blocked_by is not None:
            return "content_filter"
        return "stop" if self.stop_string is not None else None

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended this text."""
        return self._stop.hit if self._stop else None

    @property
    def hits(self) -> list[Hit]:
        """Return the matches of safety rules so far."""
        return self._safety.hits if self._safety else []

    def feed(self, raw: bytes, logprob: TokenLogprob | None) -> tuple[str, tuple[LogprobEntry, ...]]:
        """Take a token's bytes (those of this phase)."""
        start, pending = self._detokenizer.num_chars, self._detokenizer.pending
        text = self._detokenizer.feed(raw)
        if self._ledger and logprob:
            end = self._detokenizer.num_chars + bool(self._detokenizer.pending)
            self._ledger.add(logprob, raw, pending=pending, start=start, end=end)
        return self._pass(text)

    def break_text(self) -> tuple[str, tuple[LogprobEntry, ...]]:
        """Take note of a tag: a character cannot go on behind it."""
        text = self._detokenizer.flush()
        return self._pass(text) if text else ("", ())

    def close(self) -> tuple[str, tuple[LogprobEntry, ...]]:
        """Let go what is held at the end of the text."""
        return self._pass(self._detokenizer.flush(), final=True)

    def _pass(self, text: str, *, final: bool = False) -> tuple[str, tuple[LogprobEntry, ...]]:
        num_chars = self._detokenizer.num_chars
        hidden: list[tuple[int, int]] = []
        if self._stop:
            text = self._stop.feed(text)
            if final and self._stop.hit is None:
                text += self._stop.close()
            final = final or self._stop.hit is not None
            num_chars = self._stop.num_chars
        if self._safety:
            text = self._safety.feed(text, final=final)
            final = final or self._safety.blocked_by is not None
            num_chars, hidden = self._safety.num_chars, self._safety.hidden
        if self._ledger is None:
            return text, ()
        return text, self._ledger.release(num_chars, hidden, last=final)

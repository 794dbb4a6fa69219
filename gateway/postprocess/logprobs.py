"""Holds each answer token's log probability back until the token's text is sent, and ends where the text ends.

Joining `bytes` over the entries of a reply gives the UTF-8 of its content: a token cut by a stop string shows only the
bytes before the cut, a token whose text is not shown (stop string, stop token, tag) has no entry. What a safety rule
redacts has no entry either, and an alternative whose own text a rule forbids is left out: it would leak the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from gateway.postprocess.detokenizer import prefix_bytes
from wire.messages import TokenLogprob


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the most likely tokens at a position: its own bytes, and their text (U+FFFD for bad bytes)."""

    token: str
    logprob: float
    raw: bytes


class LogprobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen token at a position, and the most likely ones, best first."""

    token: str
    logprob: float
    raw: bytes
    top: tuple[TopLogprob, ...] = ()


class _Waiting(msgspec.Struct):
    """A token whose text is not out yet: it touches the characters start .. end - 1 of the answer."""

    start: int
    end: int
    pending: bytes
    raw: bytes
    source: TokenLogprob


class LogprobLedger:
    """The answer tokens of a choice whose text is held, in order."""

    def __init__(self, token_bytes: Callable[[int], bytes], forbids: Callable[[str], bool] | None = None) -> None:
        self._token_bytes = token_bytes
        self._forbids = forbids
        self._waiting: deque[_Waiting] = deque()

    def add(self, source: TokenLogprob, raw: bytes, *, pending: bytes, start: int, end: int) -> None:
        """Note a token whose bytes `raw` came after the undecoded bytes `pending`."""
        self._waiting.append(_Waiting(start, end, pending, raw, source))

    def release(self, num_chars: int, hidden: list[tuple[int, int]], *, last: bool = False) -> tuple[LogprobEntry, ...]:
        """Return the entries of tokens that lie within the first `num_chars` characters of the answer.

        `hidden` are redacted stretches. `last`: the text ends at `num_chars`, so what lies beyond is dropped or cut.
        """
        entries: list[LogprobEntry] = []
        while self._waiting and (last or self._waiting[0].end <= num_chars):
            token = self._waiting.popleft()
            if any(start < token.end and end > token.start for start, end in hidden):
                continue
            raw = token.raw
            if token.end > num_chars:
                raw = raw[: prefix_bytes(token.pending, raw, max(0, num_chars - token.start))]
            if raw:
                entries.append(self._entry(token.source, raw))
        return tuple(entries)

    def _entry(self, source: TokenLogprob, raw: bytes) -> LogprobEntry:
        top = []
        for token_id, logprob in zip(source.top_ids, source.top_logprobs, strict=True):
            other = self._token_bytes(token_id)
            text = other.decode("utf-8", "replace")
            if self._forbids is None or not self._forbids(text):
                top.append(TopLogprob(token=text, logprob=logprob, raw=other))
        return LogprobEntry(token=raw.decode("utf-8", "replace"), logprob=source.logprob, raw=raw, top=tuple(top))

"""Log probabilities as `/v1/completions` shows them: columns, with the place of each token in the text.

A token that is no whole text is written `bytes:\\xf0\\x9f`, as OpenAI does, so that two such tokens stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.postprocess.detokenizer import Detokenizer
from gateway.postprocess.logprobs import LogprobEntry, TopLogprob

Columns = dict[str, list[Any]]


class LogprobColumns:
    """The columns of one choice, whose first token stands at character `start` of the text."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._detokenizer = Detokenizer()
        self.all: Columns = _empty()

    def take_prompt(self, entries: Sequence[LogprobEntry]) -> Columns:
        """Add the tokens of an echoed prompt; nothing is known of how likely the first one was."""
        new = self.take(entries)
        for name in ("token_logprobs", "top_logprobs"):
            new[name][:1] = self.all[name][:1] = [None] * min(len(entries), 1)
        return new

    def take(self, entries: Sequence[LogprobEntry]) -> Columns:
        """Add tokens and return the columns of these alone."""
        new = _empty()
        for entry in entries:
            broken = self._detokenizer.pending and not _goes_on(entry.raw)  # one U+FFFD stands before this token
            new["text_offset"].append(self._start + self._detokenizer.num_chars + bool(broken))
            self._detokenizer.feed(entry.raw)
            new["tokens"].append(_name(entry))
            new["token_logprobs"].append(entry.logprob)
            new["top_logprobs"].append({_name(other): other.logprob for other in entry.top} or None)
        for name, column in new.items():
            self.all[name] += column
        return new


def _empty() -> Columns:
    return {"text_offset": [], "tokens": [], "token_logprobs": [], "top_logprobs": []}


def _goes_on(raw: bytes) -> bool:
    """Whether bytes can go on with a character that has begun; those without any say nothing of it."""
    return not raw or 0x80 <= raw[0] < 0xC0


def _name(token: LogprobEntry | TopLogprob) -> str:
    try:
        return token.raw.decode() or token.token
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)

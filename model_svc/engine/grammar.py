"""The grammar of one sequence's answer: which tokens may come next, and when the answer is whole.

Thinking is free: a grammar governs from the end of thinking on, and where a model opens its thinking itself, the open
tag may come in place of the answer's first token. Tokens that the engine forced to close a think block are not the
grammar's affair. All of this is a function of the tokens so far, so a replay ends in the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from copy import copy
from typing import Protocol

from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.token_bytes import TokenBytes
from wire.messages import Grammar


class Matcher(Protocol):
    """Follows one answer. What it is given must be among what it allowed."""

    def allowed(self) -> bytes | None:
        """Return the tokens that may come next, packed int32 bits; None when it has failed."""
        ...

    def accept(self, token_id: int) -> bool:
        """Take a token; False, and no change, if it may not come here."""
        ...

    def spell(self, data: bytes) -> list[int]:
        """Return tokens that spell some bytes."""
        ...

    def forced(self) -> list[int]:
        """Return the tokens that must come next whatever is drawn, most often none."""
        ...

    @property
    def whole(self) -> bool:
        """Whether the answer satisfies the grammar and nothing can be added."""
        ...

    def fork(self) -> Matcher:
        """Return a copy that goes its own way."""
        ...


class Matchers(Protocol):
    """Makes matchers, away from the thread that steps."""

    def start(self, grammar: Grammar, vocab_size: int) -> Future[Matcher]:
        """Begin to compile; the future may raise GrammarError. The matcher's masks have `vocab_size` bits."""
        ...


class OpenTag:
    """The tag with which a model may begin to think: which tokens begin it, and which go on with it."""

    def __init__(self, tag: bytes, token_bytes: TokenBytes, vocab_size: int) -> None:
        self._tag = tag
        self._token_bytes = token_bytes
        spelled = [(token_id, token_bytes(token_id)) for token_id in range(vocab_size)]
        # Only tokens that hold part of the tag matter, a few of a hundred thousand.
        self._tokens = [(token_id, data) for token_id, data in spelled if data and tag.find(data[:1]) >= 0]
        self._next: dict[int, frozenset[int]] = {}

    def next(self, position: int) -> frozenset[int]:
        """Return the tokens that go on with the tag from its byte `position` on."""
        if position not in self._next:
            rest = self._tag[position:]
            fits = (token_id for token_id, data in self._tokens if rest.startswith(data) or data.startswith(rest))
            self._next[position] = frozenset(fits)
        return self._next[position]

    def advance(self, position: int, token_id: int) -> int:
        """Return where in the tag a token leads; its length or more: the tag is complete."""
        return position + len(self._token_bytes(token_id))

    def __len__(self) -> int:
        return len(self._tag)


class AnswerGrammar:
    """A grammar at work in one sequence."""

    __slots__ = (
        "_allowed",
        "_open_tag",
        "_opened",
        "_started",
        "_thinking",
        "_tracker",
        "failed",
        "matcher",
        "pending",
    )

    def __init__(self, pending: Future[Matcher], tracker: ReasoningTracker | None, open_tag: OpenTag | None) -> None:
        """`open_tag` is None where the model cannot, or must not, begin to think by itself."""
        self.pending = pending
        self.matcher: Matcher | None = None
        self._tracker = tracker
        self._open_tag = open_tag
        self._opened = 0  # bytes of the open tag that have come
        self._thinking = not self.governs
        self._started = False
        self.failed = False  # a token came that the grammar does not allow
        self._allowed: bytes | None = None

    @property
    def governs(self) -> bool:
        """Whether the next token must be one that the grammar allows."""
        return self._tracker is None or not self._tracker.is_open

    @property
    def turns(self) -> bool:
        """Whether thinking has ended with the newest token."""
        return self._thinking and self.governs

    @property
    def whole(self) -> bool:
        """Whether the answer is complete and cannot go on."""
        return self._started and not self.failed and self.matcher is not None and self.matcher.whole

    def ready(self) -> bool:
        """Return whether the grammar is compiled. Raises GrammarError if it cannot be."""
        if self.matcher is None and self.pending.done():
            self.matcher = self.pending.result()
        return self.matcher is not None

    def wait(self) -> None:
        """Wait until it is compiled. Raises GrammarError."""
        self.matcher = self.pending.result()

    def allowed(self) -> bytes | None:
        """Return the tokens that may come next, packed int32 bits; None when there are none. Only while it governs."""
        if self._allowed is None:
            self._allowed = self._compute()
        return self._allowed

    def take(self, token_id: int) -> bool:
        """Take a drawn token, before the tracker reads it; False if it could not come here."""
        if not self.governs:
            self._thinking = True
            return True
        self._allowed = None
        self._turn_to_answer()
        if self.matcher is None or self.failed:
            self.failed = True
        elif not self._opened and self.matcher.accept(token_id):
            self._begin()
        else:
            self.failed = not self._take_tag(token_id)
        return not self.failed

    def fork(self, tracker: ReasoningTracker | None) -> AnswerGrammar:
        """Return a copy that goes its own way, beside a tracker that does."""
        other = copy(self)
        other._tracker = tracker
        other.matcher = self.matcher.fork() if self.matcher is not None else None
        return other

    def forced(self) -> list[int]:
        """Return tokens that need no draw."""
        return self.matcher.forced() if self.matcher is not None and self._started else []

    def _turn_to_answer(self) -> None:
        """Take what the close tag's token held of the answer; blanks between tag and answer are no part of either."""
        if not self._thinking:
            return
        self._thinking = False
        rest = self._tracker.behind_tag.lstrip() if self._tracker is not None else b""
        if rest and self.matcher is not None:
            self.failed = not all(map(self.matcher.accept, self.matcher.spell(rest)))
            self._begin()

    def _compute(self) -> bytes | None:
        self._turn_to_answer()
        allowed = self.matcher.allowed() if self.matcher is not None and not self.failed else None
        if allowed is None:
            return None
        if self._open_tag is not None:
            tag = self._open_tag.next(self._opened)
            allowed = _with_bits(bytes(len(allowed)) if self._opened else allowed, tag)
        return allowed if allowed.strip(b"\0") else None

    def _take_tag(self, token_id: int) -> bool:
        tag = self._open_tag
        if tag is None or token_id not in tag.next(self._opened):
            return False
        self._opened = tag.advance(self._opened, token_id)
        if self._opened >= len(tag):
            self._open_tag, self._opened = None, 0  # it thinks once
        return True

    def _begin(self) -> None:
        """The answer has begun: what looks like a tag in it is text."""
        if not self._started:
            self._started = True
            self._open_tag = None
            if self._tracker is not None:
                self._tracker.seal()


def _with_bits(mask: bytes, token_ids: Iterable[int]) -> bytes:
    bits = bytearray(mask)
    for token_id in token_ids:
        bits[token_id >> 3] |= 1 << (token_id & 7)
    return bytes(bits)

"""Grammars by llguidance: compiled once in a thread of their own, copied for every sequence that uses them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLTokenizer

from model_svc.engine.grammar import Matcher
from wire.grammar import start_matcher
from wire.messages import Grammar

_MAX_KEPT = 32  # compiled grammars; one takes some 100 kB


class LlguidanceMatcher:
    """One answer's way through a grammar."""

    __slots__ = ("_matcher", "_num_bytes", "_tokenizer")

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._num_bytes = -(-vocab_size // 32) * 4

    def allowed(self) -> bytes | None:
        """Return the tokens that may come next as bits, the end among them exactly when the answer may end here."""
        bits = self._matcher.compute_bitmask()
        return None if self._matcher.is_error() else bits[: self._num_bytes].ljust(self._num_bytes, b"\0")

    def accept(self, token_id: int) -> bool:
        """Take a token if it fits."""
        return self._matcher.try_consume_tokens([token_id]) == 1

    def spell(self, data: bytes) -> list[int]:
        """Return the longest tokens that spell some bytes."""
        return self._tokenizer.greedy_tokenize(data.decode("utf-8", "replace"))

    def forced(self) -> list[int]:
        """Return the tokens of the bytes that must come next."""
        return self._matcher.compute_ff_tokens()

    @property
    def whole(self) -> bool:
        """Whether the answer satisfies the grammar and nothing can be added."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def fork(self) -> LlguidanceMatcher:
        """Return a copy at the same place."""
        return LlguidanceMatcher(self._matcher.deep_copy(), self._tokenizer, self._num_bytes * 8)


class LlguidanceMatchers:
    """Compiles in one thread, so that a slow grammar holds up others of its kind and no step."""

    def __init__(self, make_tokenizer: Callable[[], LLTokenizer]) -> None:
        """`make_tokenizer` takes a while for a big vocabulary; it is called at once, in the thread."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._tokenizer = self._thread.submit(make_tokenizer)
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def start(self, grammar: Grammar, vocab_size: int) -> Future[Matcher]:
        """Begin to compile; the future may raise GrammarError. The matcher's masks have `vocab_size` bits."""
        return self._thread.submit(self._make, grammar, vocab_size)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _make(self, grammar: Grammar, vocab_size: int) -> Matcher:
        tokenizer = self._tokenizer.result()
        fresh = self._compiled.get(grammar)
        if fresh is None:
            fresh = self._compiled[grammar] = start_matcher(grammar, tokenizer)
            if len(self._compiled) > _MAX_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return LlguidanceMatcher(fresh.deep_copy(), tokenizer, vocab_size)

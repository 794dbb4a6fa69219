"""Proposers for tests: one that knows the answers, one that errs on purpose, one that says what is least wanted."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from model_svc.spec.proposer import Guess


class Oracle:
    """Guesses from `known`, whole sequences of prompt and answer; every so often it errs, anywhere if `errs` is 1."""

    def __init__(self, known: Callable[[], Sequence[Sequence[int]]], vocab_size: int, *, errs: int = 0) -> None:
        self._known = known
        self._vocab_size = vocab_size
        self._errs = errs

    def start(self, prediction: Sequence[int] = ()) -> Oracle:  # noqa: ARG002
        return self

    def guess(self, token_ids: Sequence[int], limit: int) -> Guess:
        begin = len(token_ids)
        whole = next((ids for ids in self._known() if list(ids[:begin]) == list(token_ids)), token_ids)
        guesses = [*whole[begin : begin + limit]]
        if self._errs:
            guesses += [0] * (limit - len(guesses))  # also behind the end
        for at in range(len(guesses)):
            dice = zlib.crc32(bytes([(begin + at) % 251, self._errs]))
            if self._errs and dice % self._errs == 0:
                guesses[at] = dice // 7 % self._vocab_size
        return Guess(guesses)


class Parrot:
    """Says the same few tokens again and again."""

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids

    def start(self, prediction: Sequence[int] = ()) -> Parrot:  # noqa: ARG002
        return self

    def guess(self, token_ids: Sequence[int], limit: int) -> Guess:
        return Guess([self._token_ids[(len(token_ids) + n) % len(self._token_ids)] for n in range(limit)])

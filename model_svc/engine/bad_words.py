"""Words that an answer must not hold, as token ids: which ids the next draw must not be.

A word of one token is always forbidden, so the runner bars it for good. One of several is broken off at its last token,
which hangs on those drawn before; such a sequence is planned only when they are known. Only what was generated counts.
"""

from __future__ import annotations

from collections.abc import Sequence


class BadWords:
    """The words of one request."""

    __slots__ = ("_longer", "always")

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self.always = tuple(sorted({word[0] for word in words if len(word) == 1}))
        self._longer = [word for word in words if len(word) > 1]

    @property
    def hang_on_output(self) -> bool:
        """Whether what is forbidden changes with what was said."""
        return bool(self._longer)

    def forbidden(self, token_ids: Sequence[int], num_prompt_tokens: int) -> tuple[int, ...]:
        """Return the ids that would complete a word here, besides those that are forbidden always."""
        found = set()
        for word in self._longer:
            begin = len(token_ids) - len(word) + 1
            if begin >= num_prompt_tokens and tuple(token_ids[begin:]) == word[:-1]:
                found.add(word[-1])
        return tuple(sorted(found))

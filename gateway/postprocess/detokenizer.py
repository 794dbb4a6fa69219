"""Bytes of tokens -> text, as they come.

A character may be split over tokens, so bytes are decoded as one stream, never token by token. Bytes that cannot be
UTF-8 become U+FFFD, as many and at the same places as `bytes.decode("utf-8", "replace")` gives for the whole.
"""

from __future__ import annotations

import codecs

_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """An incremental UTF-8 decoder that knows how many characters it has given out."""

    def __init__(self) -> None:
        self._decoder = _DECODER("replace")
        self._between = True  # two characters
        self.num_chars = 0

    @property
    def pending(self) -> bytes:
        """Return the bytes of a character that has begun and is not complete."""
        return self._decoder.getstate()[0]

    def feed(self, raw: bytes) -> str:
        """Return the characters that are certain once `raw` has come."""
        if self._between and raw.isascii():  # most tokens: the decoder, which may be amid a character, costs five times
            text = raw.decode("ascii")
        else:
            text = self._decoder.decode(raw)
            self._between = not self.pending
        self.num_chars += len(text)
        return text

    def flush(self) -> str:
        """End a stretch of text: an incomplete character becomes U+FFFD, and the next byte starts afresh."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        self._between = True
        self.num_chars += len(text)
        return text


def prefix_bytes(pending: bytes, raw: bytes, num_chars: int) -> int:
    """Return how many bytes of `raw`, decoded after `pending`, lie in the first `num_chars` characters they give."""
    decoder = _DECODER("replace")
    decoder.setstate((pending, 0))
    count = 0
    kept = 0
    for at in range(len(raw)):
        count += len(decoder.decode(raw[at : at + 1]))
        if count > num_chars or (count == num_chars and decoder.getstate()[0]):
            break
        kept = at + 1
    return kept

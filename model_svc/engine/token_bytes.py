"""The bytes that tokens stand for, in which tags and ends of sentences are found."""

from __future__ import annotations

from collections.abc import Callable

from wire.vocabulary import Vocabulary

TokenBytes = Callable[[int], bytes]

_SENTENCE_MARKS = tuple(mark.encode() for mark in ".!?。！？…")


def tag_bytes(vocabulary: Vocabulary) -> TokenBytes:
    """Return the bytes of tokens as tags are looked for in them: a special token stands for its own text."""
    special = {token_id: text.encode() for text, token_id in vocabulary.special.items()}
    return lambda token_id: special.get(token_id) or vocabulary.token_bytes(token_id)


def ends_sentence(data: bytes) -> bool:
    """Tell whether a token ends a sentence or a line. One that may end a tag does not, so none follows a close tag."""
    if b">" in data or b"]" in data:
        return False
    return data.endswith(b"\n") or data.rstrip(b" \"')*_").endswith(_SENTENCE_MARKS)


def sentence_ends(token_bytes: TokenBytes, vocab_size: int) -> bytes:
    """Return the tokens that end a sentence as a bit mask over the vocabulary, packed int32."""
    mask = 0
    for token_id in range(vocab_size):
        if ends_sentence(token_bytes(token_id)):
            mask |= 1 << token_id
    return mask.to_bytes(-(-vocab_size // 32) * 4, "little")

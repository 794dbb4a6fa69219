"""Pairs of a query and a document -> token ids, as a cross-encoder reads them: one text with its special tokens.

What stands before the documents is the same for all pairs of a query, so it is made, and sent, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from wire.errors import ContextLengthExceededError, InvalidRequestError
from wire.messages import Pairs, Prompt, Request, pack_ids
from wire.model_card import ModelCard


class _Frame(NamedTuple):
    """What stands before and behind a document."""

    start: list[int]
    end: list[int]

    @property
    def num_tokens(self) -> int:
        return len(self.start) + len(self.end)


def pair_prompt(card: ModelCard, tokenizer: Tokenizer, request: Request) -> Prompt:
    """Return the ids of all pairs. Raises InvalidRequestError, or ContextLengthExceededError naming the pair."""
    pairs = request.pairs or Pairs()
    texts = [str(one) for one in request.inputs]
    frames = [_frame(tokenizer, query) for query in texts[: pairs.num_queries]]
    documents = tokenizer.encode_batch_fast(texts[pairs.num_queries :], add_special_tokens=False)
    starts, ends, lengths = [frame.start for frame in frames], [], []
    for number, document in enumerate(documents):
        frame = frames[0 if len(frames) == 1 else number]
        ids = _fitting(document.ids, frame, number, card, request)
        ends.append(ids + frame.end)
        lengths.append(frame.num_tokens + len(ids))
    parts = starts + ends
    return Prompt(
        token_ids=b"".join(map(pack_ids, parts)),
        num_tokens=sum(lengths),
        lengths=tuple(map(len, parts)),
        longest=max(lengths),
    )


def _frame(tokenizer: Tokenizer, query: str) -> _Frame:
    pair = tokenizer.encode_batch_fast([(query, "a")])[0]  # `encode` would hold the interpreter's lock
    second = [at for at, text in enumerate(pair.sequence_ids) if text == 1]
    return _Frame(pair.ids[: second[0]], pair.ids[second[-1] + 1 :])


def _fitting(ids: Sequence[int], frame: _Frame, number: int, card: ModelCard, request: Request) -> list[int]:
    """Return a document's ids, its end cut off if that is asked for and needed; the query is never cut."""
    if request.cut_at is not None:
        room = (request.cut_at or card.max_model_len) - frame.num_tokens
        if room < 1:
            raise InvalidRequestError(
                f"the query takes {frame.num_tokens} tokens, which leaves no room for one of a document",
                param="truncate_prompt_tokens",
            )
        return list(ids[:room])
    num_tokens = frame.num_tokens + len(ids)
    if num_tokens > card.max_model_len:
        pairs = request.pairs or Pairs()
        place = request.place_of_input(pairs.num_queries + number)
        raise ContextLengthExceededError(
            f"{place} has {num_tokens} tokens with its query; {card.name} takes {card.max_model_len} at most "
            "(truncate_prompt_tokens: -1 keeps so many)",
            param=pairs.document,
        )
    return list(ids)

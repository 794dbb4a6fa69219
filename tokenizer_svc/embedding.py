"""Inputs of an embedding request -> token ids, each between the special tokens that the model wants round a text."""

from __future__ import annotations

from tokenizers import Encoding, Tokenizer

from wire.errors import ContextLengthExceededError, InvalidRequestError
from wire.messages import Prompt, Recalled, Request, TokenizeCall, pack_ids
from wire.model_card import ModelCard


class EmbeddingPrompts:
    """Builds the prompts of one embedding model. A special token's text in an input is text like any other."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._tokenizer = Tokenizer.from_file(str(card.path / "tokenizer.json"))
        self._tokenizer.no_truncation()  # the file may ask for it; a vector of half a text would mislead
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def build(self, request: Request, recalled: Recalled | None = None, room: int | None = None) -> Prompt:
        """Return the ids of all inputs. Raises InvalidRequestError, or ContextLengthExceededError naming the input."""
        del recalled, room
        if request.kind != "embedding":
            raise InvalidRequestError(f"{self._card.name} makes embeddings; it does not generate text", param="model")
        texts = [item for item in request.inputs if isinstance(item, str)]
        encoded = iter(self._tokenizer.encode_batch_fast(texts))
        most = None if request.cut_at is None else request.cut_at or self._card.max_model_len
        inputs = [
            _cut(next(encoded), most) if isinstance(item, str) else self._checked(item)[:most]
            for item in request.inputs
        ]
        for index, ids in enumerate(inputs):
            if len(ids) > self._card.max_model_len:
                raise ContextLengthExceededError(
                    f"input[{index}] has {len(ids)} tokens; {self._card.name} takes {self._card.max_model_len} at most "
                    "(truncate_prompt_tokens: -1 keeps so many)",
                    param="input",
                )
        return Prompt(
            token_ids=b"".join(map(pack_ids, inputs)),
            num_tokens=sum(map(len, inputs)),
            lengths=tuple(map(len, inputs)),
        )

    def tokenize(self, call: TokenizeCall) -> list[int]:
        """Return the ids of a text. Raises InvalidRequestError for a conversation."""
        if call.request.kind != "text":
            raise InvalidRequestError(f"{self._card.name} has no chat template", param="messages")
        ids: list[int] = self._tokenizer.encode_batch_fast(
            [call.request.prompt_text], add_special_tokens=call.add_special_tokens
        )[0].ids
        return ids

    def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if not ids or min(ids) < 0 or max(ids) >= self._card.vocab_size:
            raise InvalidRequestError(f"token ids must lie in 0 .. {self._card.vocab_size - 1}", param="input")
        return ids


def _cut(encoded: Encoding, most: int | None) -> list[int]:
    """Return the ids of a text, its end cut off if it is longer; the special tokens round it stay."""
    ids: list[int] = encoded.ids
    if most is None or len(ids) <= most:
        return ids
    num_behind = next((at for at, special in enumerate(reversed(encoded.special_tokens_mask)) if not special), 0)
    if most <= sum(encoded.special_tokens_mask):
        raise InvalidRequestError(f"{most} tokens leave no room for one of the text", param="truncate_prompt_tokens")
    return ids[: most - num_behind] + ids[len(ids) - num_behind :]

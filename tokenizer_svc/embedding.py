"""Inputs of a model that embeds or scores -> token ids, with the special tokens that it wants round a text or pair."""

from __future__ import annotations

import msgspec
from tokenizers import Encoding, Tokenizer

from tokenizer_svc.encoder import renamed
from tokenizer_svc.marking import private_word
from tokenizer_svc.pairs import pair_prompt
from wire.errors import ContextLengthExceededError, InvalidRequestError
from wire.messages import Prompt, Recalled, Request, TokenizeCall, pack_ids
from wire.model_card import ModelCard

_MAKES = {"embedding": "makes embeddings", "rerank": "scores documents"}


class EmbeddingPrompts:
    """Builds the prompts of one such model. A special token's text in an input is text like any other."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        data = msgspec.json.decode((card.path / "tokenizer.json").read_bytes())
        # Under words that nobody can type: SentencePiece's model would make a control token of its mere text.
        words = {item["content"]: private_word() for item in data.get("added_tokens", ()) if item.get("special")}
        self._tokenizer = Tokenizer.from_str(msgspec.json.encode(renamed(data, words)).decode())
        self._tokenizer.no_truncation()  # the file may ask for it; a vector of half a text would mislead
        self._tokenizer.no_padding()

    def build(self, request: Request, recalled: Recalled | None = None, room: int | None = None) -> Prompt:
        """Return the ids of all inputs. Raises InvalidRequestError, or ContextLengthExceededError naming the input."""
        del recalled, room
        if request.kind != ("score" if self._card.kind == "rerank" else "embedding"):
            raise InvalidRequestError(
                f"{self._card.name} {_MAKES[self._card.kind]}; that is all it does", param="model"
            )
        if request.kind == "score":
            return pair_prompt(self._card, self._tokenizer, request)
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
                    f"{request.place_of_input(index)} has {len(ids)} tokens; {self._card.name} takes "
                    f"{self._card.max_model_len} at most (truncate_prompt_tokens: -1 keeps so many)",
                    param=request.place_of_input(index).partition("[")[0],
                )
        return Prompt(
            token_ids=b"".join(map(pack_ids, inputs)),
            num_tokens=sum(map(len, inputs)),
            lengths=tuple(map(len, inputs)),
            longest=max(map(len, inputs)),
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

"""Log probabilities of a prompt's own tokens: as entries, and in the shape that vLLM's clients know."""

from __future__ import annotations

from typing import Any

from gateway.edge.reply import ChoiceUpdate
from gateway.postprocess.logprobs import LogprobEntry, TopLogprob
from wire.messages import Request, TokenLogprob
from wire.vocabulary import Vocabulary


class PromptLogprobs:
    """Names tokens by a model's vocabulary, control tokens by their own text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._special = {token_id: text for text, token_id in vocabulary.special.items()}

    def entries(self, update: ChoiceUpdate, *, added: int = 0) -> list[LogprobEntry]:
        """Return an entry for each prompt token; the first one's value means nothing.

        Without the first `added` tokens, which the tokenizer put before the client's text.
        """
        sources = (TokenLogprob(0.0), *update.prompt_logprobs)
        pairs = list(zip(update.prompt_ids, sources, strict=True))[added:]
        return [self._entry(token_id, source) for token_id, source in pairs]

    def only(self, request: Request) -> list[LogprobEntry]:
        """Return the entry of a prompt of one token; none if the tokenizer put it before no text at all."""
        if request.kind == "ids":
            return [self._entry(memoryview(request.prompt_ids).cast("i")[0], TokenLogprob(0.0))]
        text = request.prompt_text
        return [LogprobEntry(token=text, logprob=0.0, raw=text.encode(), top=())] if text else []

    def num_added(self, update: ChoiceUpdate, text: str) -> int:
        """Return how many control tokens stand before a text that the client sent."""
        ids = update.prompt_ids
        count = next((at for at, token_id in enumerate(ids) if token_id not in self._special), len(ids))
        return count if text else 0

    def table(self, update: ChoiceUpdate) -> list[dict[str, Any] | None]:
        """Return vLLM's `prompt_logprobs`: for each token a map from ids, nothing for the first."""
        rows: list[dict[str, Any] | None] = [None]
        for token_id, source in zip(update.prompt_ids[1:], update.prompt_logprobs, strict=True):
            ranked = dict(zip(source.top_ids, source.top_logprobs, strict=True))
            row = {
                str(other): {"logprob": value, "rank": rank, "decoded_token": self._text(other)}
                for rank, (other, value) in enumerate(ranked.items(), 1)
            }
            if token_id not in ranked:
                row[str(token_id)] = {"logprob": source.logprob, "rank": None, "decoded_token": self._text(token_id)}
            rows.append(row)
        return rows

    def _entry(self, token_id: int, source: TokenLogprob) -> LogprobEntry:
        top = tuple(
            TopLogprob(token=self._text(other), logprob=value, raw=self._vocabulary.token_bytes(other))
            for other, value in zip(source.top_ids, source.top_logprobs, strict=True)
        )
        raw = self._vocabulary.token_bytes(token_id)
        return LogprobEntry(token=self._text(token_id), logprob=source.logprob, raw=raw, top=top)

    def _text(self, token_id: int) -> str:
        return self._special.get(token_id) or self._vocabulary.token_bytes(token_id).decode("utf-8", "replace")

"""A request and what is recalled of its conversation -> the prompt, in token ids.

Everything here is CPU work without a bus, run in a worker thread. `max_tokens` of the prompt is what the client wants,
or what the context leaves, whichever is less. In raw completions text is only text: a control token's text does not
become one, BOS included; clients that want control tokens send ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizer_svc import reasoning
from tokenizer_svc.chat_encoder import COUNTED_CONTEXTS, MOST_CHARACTERS, ChatEncoder, Encoded
from tokenizer_svc.context import ContextLimit
from tokenizer_svc.effort import EffortTable
from tokenizer_svc.encoder import Encoder
from wire import block_hash
from wire.errors import InvalidRequestError
from wire.harmony import STOPS, speaks_harmony
from wire.messages import Prompt, ReasoningPlan, Recalled, Request, TokenizeCall, pack_ids, unpack_ids
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(
        self,
        card: ModelCard,
        *,
        secret: bytes,
        block_size: int,
        render_timeout_s: float = 2.0,
        efforts: EffortTable | None = None,
    ) -> None:
        self.card = card
        self._efforts = efforts or EffortTable.load(card.path, card.name)
        self._vocabulary = Vocabulary.load(card.path)
        self._encoder = Encoder(card.path, self._vocabulary, template=card.chat_template or "")
        self._secret = secret
        self._block_size = block_size
        # A message to a function ends an answer as its end does, whatever generation_config.json says.
        framed = speaks_harmony(card.chat_template)
        stops = STOPS if framed else ()
        of_format = (self._vocabulary.special[stop] for stop in stops if stop in self._vocabulary.special)
        size = min(self._vocabulary.size, card.vocab_size) if framed else 0
        self._thought_ids = reasoning.beginnings(size, self._vocabulary.token_bytes)
        self._stop_ids = tuple(dict.fromkeys((*card.eos_token_ids, *of_format)))
        self._first_ids = self._encoder.first_ids
        if not self._first_ids and card.add_bos_token and card.bos_token_id is not None:
            self._first_ids = [card.bos_token_id]
        self._context = ContextLimit(card.max_model_len, self._encoder)
        self._chats = ChatEncoder(
            card, self._encoder, self._vocabulary, self._first_ids, self._context, render_timeout_s=render_timeout_s
        )

    def build(self, request: Request, recalled: Recalled | None = None, room: int | None = None) -> Prompt:
        """Return the prompt of a request; replicas have `room` for so many tokens, None: for the model's context.

        A prompt that is longer than that only is the balancer's to refuse. Raises InvalidRequestError and its kinds.
        """
        room = min(self.card.max_model_len, room or self.card.max_model_len)
        if request.kind == "chat":
            encoded, thinking, num_dropped = self._chats.fit(request, recalled or Recalled(), room)
            return self._prompt(encoded, request, room, thinking=thinking, num_dropped=num_dropped)
        if request.kind == "text":
            self._context.check_text(request.prompt_text, param="prompt")
            ids = [*self._first_ids, *self._encoder.encode(request.prompt_text)]
        else:
            ids = self._checked_ids(request.prompt_ids)
        if not ids:
            raise InvalidRequestError("the prompt is empty, and this model has no token to begin with", param="prompt")
        return self._prompt(Encoded("", ids), request, room, param="prompt")

    def tokenize(self, call: TokenizeCall) -> list[int]:
        """Return the ids that `/tokenize` shows, also of what is longer than the context."""
        request = call.request
        if request.kind != "text":
            return self._chats.tokenize(call)
        self._context.check_text(request.prompt_text, param="prompt", contexts=COUNTED_CONTEXTS)
        if call.add_special_tokens:
            return [*self._first_ids, *self._encoder.encode(request.prompt_text)]
        return self._encoder.encode_template_text(request.prompt_text)  # whoever asks writes control tokens himself

    def _checked_ids(self, raw: bytes) -> list[int]:
        ids = unpack_ids(raw)
        if ids and not (min(ids) >= 0 and max(ids) < self.card.vocab_size):
            raise InvalidRequestError(f"token ids must lie in 0 .. {self.card.vocab_size - 1}", param="prompt")
        return ids or list(self._first_ids)

    def _prompt(
        self,
        encoded: Encoded,
        request: Request,
        room: int,
        *,
        param: str = "messages",
        thinking: reasoning.Thinking | None = None,
        num_dropped: int = 0,
    ) -> Prompt:
        text, ids, images = encoded
        left = self._context.room_behind(len(ids), param=param)
        wanted = request.sampling.max_tokens
        left = max(1, min(left, room - len(ids)))
        max_tokens = left if wanted is None else min(wanted, left)
        root = block_hash.root(
            self._secret,
            model=request.base,
            adapter=request.adapter,
            block_size=self._block_size,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            deterministic=request.sampling.deterministic,
        )
        return Prompt(
            token_ids=pack_ids(ids),
            num_tokens=len(ids),
            block_root=root,
            block_hashes=b"".join(block_hash.chain(root, ids, self._block_size, images)),
            block_size=self._block_size,
            max_tokens=max_tokens,
            stop_token_ids=self._stop_ids,
            reasoning=self._plan(thinking, request, text, max_tokens) if thinking else None,
            messages_dropped=num_dropped,
            bad_word_ids=self._bad_word_ids(request.sampling.bad_words),
            prediction_ids=self._prediction_ids(request, max_tokens),
            images=images,
            adapter=request.adapter,
        )

    def _prediction_ids(self, request: Request, max_tokens: int) -> bytes:
        """Return the client's guess at the answer, as far as the answer can go; nobody guesses where nobody may."""
        text = request.prediction
        if not text or request.sampling.num_draft_tokens == 0:
            return b""
        return pack_ids(self._encoder.encode(text[: max_tokens * MOST_CHARACTERS])[:max_tokens])

    def _bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the ways a text spells these words: at its start, after a space, and on a new line."""
        found: dict[tuple[int, ...], None] = {}
        line = self._encoder.encode("\n") if words else []
        for word in words:
            bare = word.lstrip(" ")
            if not bare:
                raise InvalidRequestError("a bad word must hold more than spaces", param="bad_words")
            spellings = [self._encoder.encode(bare), self._encoder.encode(f" {bare}")]
            below = self._encoder.encode(f"\n{bare}")
            spellings += [below[len(line) :]] if below[: len(line)] == line else []
            found |= dict.fromkeys(tuple(ids) for ids in spellings if ids)
        return tuple(found)

    def _plan(self, thinking: reasoning.Thinking, request: Request, text: str, max_tokens: int) -> ReasoningPlan | None:
        if thinking.channels and request.continues:
            return None  # the prompt ends within a message for the user
        return reasoning.plan(
            thinking,
            self._efforts,
            starts_open=self._chats.is_open(text, thinking),
            max_tokens=max_tokens,
            encode=self._encoder.encode_template_text,
            thought_ids=self._thought_ids,
        )

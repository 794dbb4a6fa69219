"""The tokenizer desk's one thing: a request and what is recalled of its conversation -> the prompt, in token ids.

Everything here is CPU work without a bus, run in a worker thread. `max_tokens` of the prompt is what the client wants,
or what the context leaves, whichever is less. In raw completions text is only text: a control token's text does not
become one, BOS included; clients that want control tokens send ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizer_svc import reasoning
from tokenizer_svc.chat import ChatRenderer
from tokenizer_svc.conversation import check_roles, with_system, without_tags
from tokenizer_svc.effort import EffortTable
from tokenizer_svc.encoder import Encoder
from tokenizer_svc.pictures import PicturePlacer
from tokenizer_svc.splice import splice
from tokenizer_svc.template import check_kwargs
from tokenizer_svc.truncation import num_out_of_reach, num_to_drop, num_turns, without_oldest
from wire import block_hash
from wire.errors import ContextLengthExceededError, InvalidRequestError
from wire.harmony import STOPS, speaks_harmony
from wire.messages import (
    ChatMessage,
    ImageSpan,
    Prompt,
    ReasoningPlan,
    Recalled,
    Request,
    TokenizeCall,
    pack_ids,
    unpack_ids,
)
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

_MOST_CHARACTERS = 16  # of a token, on the average; what is behind so many is not worth looking at
_ANY_LENGTH = 1 << 30  # contexts
_COUNTED_CONTEXTS = 4  # a text that is too long is counted, so that a client sees by how much; not just any text


class Encoded(NamedTuple):
    """A conversation as prompt text (with stand-ins), as token ids, and where in these its pictures stand."""

    text: str
    ids: list[int]
    images: tuple[ImageSpan, ...]


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
        self._renderer = ChatRenderer(card, self._encoder.marks, timeout_s=render_timeout_s)
        self._pictures = PicturePlacer(card, self._encoder.marks, self._vocabulary)
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

    def build(self, request: Request, recalled: Recalled | None = None, room: int | None = None) -> Prompt:
        """Return the prompt of a request; replicas have `room` for so many tokens, None: for the model's context.

        A prompt that is longer than that only is the balancer's to refuse. Raises InvalidRequestError and its kinds.
        """
        room = min(self.card.max_model_len, room or self.card.max_model_len)
        if request.kind == "chat":
            return self._chat(request, recalled or Recalled(), room)
        if request.kind == "text":
            self._refuse_early(request.prompt_text, param="prompt")
            ids = [*self._first_ids, *self._encoder.encode(request.prompt_text)]
        else:
            ids = self._checked_ids(request.prompt_ids)
        if not ids:
            raise InvalidRequestError("the prompt is empty, and this model has no token to begin with", param="prompt")
        return self._prompt(ids, request, room, param="prompt")

    def tokenize(self, call: TokenizeCall) -> list[int]:
        """Return the ids that `/tokenize` shows, also of what is longer than the context."""
        request = call.request
        if request.kind == "text":
            self._refuse_early(request.prompt_text, param="prompt", contexts=_COUNTED_CONTEXTS)
            if call.add_special_tokens:
                return [*self._first_ids, *self._encoder.encode(request.prompt_text)]
            return self._encoder.encode_template_text(request.prompt_text)  # whoever asks writes control tokens himself
        recalled = call.recalled or Recalled()
        messages = self._checked_messages((*recalled.messages, *request.messages), request)
        thinking, follows = self.thinking(request), call.add_generation_prompt
        stored = unpack_ids(recalled.prompt_ids)
        return self.encode_chat(
            request, messages, thinking, stored, answer_follows=follows, contexts=_COUNTED_CONTEXTS
        ).ids

    def _checked_ids(self, raw: bytes) -> list[int]:
        ids = unpack_ids(raw)
        if ids and not (min(ids) >= 0 and max(ids) < self.card.vocab_size):
            raise InvalidRequestError(f"token ids must lie in 0 .. {self.card.vocab_size - 1}", param="prompt")
        return ids or list(self._first_ids)

    def _chat(self, request: Request, recalled: Recalled, room: int) -> Prompt:
        messages = kept = self._checked_messages((*recalled.messages, *request.messages), request)
        if cuts := _is_cut(request):
            kept = without_oldest(messages, num_out_of_reach(messages, characters=_MOST_CHARACTERS * room))
        candidates = _Candidates(self, request, kept, unpack_ids(recalled.prompt_ids))
        dropped = 0
        if cuts:
            wanted = request.sampling.max_tokens or room
            dropped = num_to_drop(candidates.turns, candidates.count, context=room, room=min(wanted, room // 4))
        text, ids, images = candidates.encoded(dropped)
        num_dropped = len(messages) - len(without_oldest(kept, dropped))
        return self._prompt(
            ids, request, room, thinking=candidates.thinking, text=text, num_dropped=num_dropped, images=images
        )

    def _checked_messages(self, messages: Sequence[ChatMessage], request: Request) -> list[ChatMessage]:
        check_kwargs(request.template_kwargs)
        if not messages:  # the edge lets that in only where a conversation may hold some
            raise InvalidRequestError("the conversation is empty, and so is the input", param="input")
        check_roles(messages)
        self._pictures.check(messages)
        return [without_tags(message) for message in messages]

    def encode_chat(
        self,
        request: Request,
        messages: Sequence[ChatMessage],
        thinking: reasoning.Thinking,
        stored: list[int],
        *,
        answer_follows: bool = True,
        contexts: int = 1,
    ) -> Encoded:
        """Return what a conversation is in text and ids, up to where an answer begins or goes on."""
        begun = messages[-1].content if request.continues else ""
        messages = messages[:-1] if request.continues else messages
        for extra in (reasoning.SCAFFOLD if thinking.scaffold else "", request.instructions):
            messages = with_system(messages, extra) if extra else messages
        told = reasoning.variables(thinking, self._renderer.source) | {"add_generation_prompt": answer_follows}
        images = [image for message in messages for image in message.images]
        text = self._pictures.place(self._renderer.render(messages, request, told), images)
        text += self._encoder.marks.place(thinking.opening) if answer_follows else ""
        if begun and answer_follows:
            resuming = thinking.resuming(is_open=self._is_open(text, thinking))
            text += self._encoder.marks.place(resuming) + begun
        self._refuse_early(text, param="messages", contexts=contexts)
        ids, _ = splice(self._encoder, stored, text)
        missing = self._first_ids if ids[: len(self._first_ids)] != self._first_ids else []
        ids = [*missing, *ids]
        return Encoded(text, ids, self._pictures.spans(ids, images))

    def thinking(self, request: Request) -> reasoning.Thinking:
        """Return how a request thinks with this model."""
        return reasoning.choose(request, self._renderer.source)

    def _is_open(self, text: str, thinking: reasoning.Thinking) -> bool:
        """Tell whether a prompt ends inside a think block."""
        return text.rstrip().endswith(self._encoder.marks.place(thinking.open_tag))

    def _refuse_early(self, text: str, *, param: str, contexts: int = 1) -> None:
        least = self._encoder.at_least(text)
        if least > self.card.max_model_len * contexts:
            raise self._too_long(f"at least {least}", param)

    def _too_long(self, num_tokens: str, param: str) -> ContextLengthExceededError:
        limit = self.card.max_model_len
        return ContextLengthExceededError(
            f"the model's context is {limit} tokens and needs one for the answer; the prompt has {num_tokens} tokens",
            param=param,
        )

    def _prompt(
        self,
        ids: list[int],
        request: Request,
        room: int,
        *,
        param: str = "messages",
        thinking: reasoning.Thinking | None = None,
        text: str = "",
        num_dropped: int = 0,
        images: tuple[ImageSpan, ...] = (),
    ) -> Prompt:
        left = self.card.max_model_len - len(ids)
        if left < 1:
            raise self._too_long(str(len(ids)), param)
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
        return pack_ids(self._encoder.encode(text[: max_tokens * _MOST_CHARACTERS])[:max_tokens])

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
            starts_open=self._is_open(text, thinking),
            max_tokens=max_tokens,
            encode=self._encoder.encode_template_text,
            thought_ids=self._thought_ids,
        )


class _Candidates:
    """The conversation without its k oldest turns, rendered and encoded when asked for."""

    def __init__(
        self, builder: PromptBuilder, request: Request, messages: Sequence[ChatMessage], stored: list[int]
    ) -> None:
        self._builder, self._request, self._messages, self._stored = builder, request, messages, stored
        self.thinking = builder.thinking(request)
        self.turns = num_turns(messages)
        # What can be cut may be too long at first.
        self._contexts = 1 if self.turns <= 1 or not _is_cut(request) else _ANY_LENGTH
        self._known: dict[int, Encoded] = {}

    def encoded(self, dropped: int) -> Encoded:
        if dropped not in self._known:
            kept = without_oldest(self._messages, dropped)
            self._known[dropped] = self._builder.encode_chat(
                self._request, kept, self.thinking, self._stored, contexts=self._contexts
            )
        return self._known[dropped]

    def count(self, dropped: int) -> int:
        return len(self.encoded(dropped).ids)


def _is_cut(request: Request) -> bool:
    """Whether old turns may go where a conversation is too long."""
    return request.conversation is not None and request.conversation.truncation == "auto"

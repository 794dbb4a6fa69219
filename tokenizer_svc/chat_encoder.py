"""A conversation -> prompt text, token ids, and where in these its pictures stand.

Ids of earlier turns are spliced in as they are stored. A conversation that may be cut loses its oldest turns until the
rest leaves room for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizer_svc import reasoning
from tokenizer_svc.chat import ChatRenderer
from tokenizer_svc.context import ContextLimit
from tokenizer_svc.conversation import check_roles, with_system, without_tags
from tokenizer_svc.encoder import Encoder
from tokenizer_svc.pictures import PicturePlacer
from tokenizer_svc.splice import splice
from tokenizer_svc.template import check_kwargs
from tokenizer_svc.truncation import num_out_of_reach, num_to_drop, num_turns, without_oldest
from wire.errors import InvalidRequestError
from wire.messages import ChatMessage, ImageSpan, Recalled, Request, TokenizeCall, unpack_ids
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

MOST_CHARACTERS = 16
"""Characters of a token, on the average; what is behind so many is not worth looking at."""

COUNTED_CONTEXTS = 4
"""A text that is too long is counted up to so many contexts: a client sees by how much, but not just any text costs."""

_ANY_LENGTH = 1 << 30  # contexts


class Encoded(NamedTuple):
    """A prompt as text (with stand-ins; empty where nobody asks for it) and token ids, and where its pictures stand."""

    text: str
    ids: list[int]
    images: tuple[ImageSpan, ...] = ()


class Fitted(NamedTuple):
    """A conversation that fits, how it thinks, and how many of its messages had to go."""

    encoded: Encoded
    thinking: reasoning.Thinking
    num_dropped: int


class ChatEncoder:
    """Encodes conversations for one model. `first_ids` stand before every prompt, whatever the template writes."""

    def __init__(
        self,
        card: ModelCard,
        encoder: Encoder,
        vocabulary: Vocabulary,
        first_ids: list[int],
        context: ContextLimit,
        *,
        render_timeout_s: float,
    ) -> None:
        self._encoder = encoder
        self._renderer = ChatRenderer(card, encoder.marks, timeout_s=render_timeout_s)
        self._pictures = PicturePlacer(card, encoder.marks, vocabulary)
        self._first_ids = first_ids
        self._context = context

    def fit(self, request: Request, recalled: Recalled, room: int) -> Fitted:
        """Return a request's conversation for replicas with `room` tokens. Raises InvalidRequestError and its kinds."""
        messages = kept = self._checked((*recalled.messages, *request.messages), request)
        if cuts := _may_be_cut(request):
            kept = without_oldest(messages, num_out_of_reach(messages, characters=MOST_CHARACTERS * room))
        candidates = _Candidates(self, request, kept, unpack_ids(recalled.prompt_ids))
        dropped = 0
        if cuts:
            wanted = request.sampling.max_tokens or room
            dropped = num_to_drop(candidates.turns, candidates.count, context=room, room=min(wanted, room // 4))
        num_dropped = len(messages) - len(without_oldest(kept, dropped))
        return Fitted(candidates.encoded(dropped), candidates.thinking, num_dropped)

    def tokenize(self, call: TokenizeCall) -> list[int]:
        """Return the ids of a conversation that is only counted, also of what is longer than the context."""
        request = call.request
        recalled = call.recalled or Recalled()
        messages = self._checked((*recalled.messages, *request.messages), request)
        thinking, follows = self.thinking(request), call.add_generation_prompt
        stored = unpack_ids(recalled.prompt_ids)
        return self.encode(request, messages, thinking, stored, answer_follows=follows, contexts=COUNTED_CONTEXTS).ids

    def encode(
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
        variables = reasoning.variables(thinking, self._renderer.source) | {"add_generation_prompt": answer_follows}
        images = [image for message in messages for image in message.images]
        text = self._pictures.place(self._renderer.render(messages, request, variables), images)
        text += self._encoder.marks.place(thinking.opening) if answer_follows else ""
        if begun and answer_follows:
            resuming = thinking.resuming(is_open=self.is_open(text, thinking))
            text += self._encoder.marks.place(resuming) + begun
        self._context.check_text(text, param="messages", contexts=contexts)
        ids, _ = splice(self._encoder, stored, text)
        missing = self._first_ids if ids[: len(self._first_ids)] != self._first_ids else []
        ids = [*missing, *ids]
        return Encoded(text, ids, self._pictures.spans(ids, images))

    def thinking(self, request: Request) -> reasoning.Thinking:
        """Return how a request thinks with this model."""
        return reasoning.choose(request, self._renderer.source)

    def is_open(self, text: str, thinking: reasoning.Thinking) -> bool:
        """Tell whether a prompt ends inside a think block."""
        return text.rstrip().endswith(self._encoder.marks.place(thinking.open_tag))

    def _checked(self, messages: Sequence[ChatMessage], request: Request) -> list[ChatMessage]:
        check_kwargs(request.template_kwargs)
        if not messages:  # the edge lets that in only where a conversation may hold some
            raise InvalidRequestError("the conversation is empty, and so is the input", param="input")
        check_roles(messages)
        self._pictures.check(messages)
        return [without_tags(message) for message in messages]


class _Candidates:
    """The conversation without its k oldest turns, rendered and encoded when asked for."""

    def __init__(
        self, encoder: ChatEncoder, request: Request, messages: Sequence[ChatMessage], stored: list[int]
    ) -> None:
        self._encoder, self._request, self._messages, self._stored = encoder, request, messages, stored
        self.thinking = encoder.thinking(request)
        self.turns = num_turns(messages)
        # What can be cut may be too long at first.
        self._contexts = 1 if self.turns <= 1 or not _may_be_cut(request) else _ANY_LENGTH
        self._known: dict[int, Encoded] = {}

    def encoded(self, dropped: int) -> Encoded:
        if dropped not in self._known:
            kept = without_oldest(self._messages, dropped)
            self._known[dropped] = self._encoder.encode(
                self._request, kept, self.thinking, self._stored, contexts=self._contexts
            )
        return self._known[dropped]

    def count(self, dropped: int) -> int:
        return len(self.encoded(dropped).ids)


def _may_be_cut(request: Request) -> bool:
    """Tell whether old turns may go where a conversation is too long."""
    return request.conversation is not None and request.conversation.truncation == "auto"

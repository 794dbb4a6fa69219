"""/tokenize and /detokenize, inwards: vLLM's bodies. A conversation is rendered as a chat request would be."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.edge.schema.body import check_depth
from gateway.edge.schema.content import MessageIn, check_number, translate_message
from gateway.edge.schema.pictures import Pictures
from gateway.edge.schema.sampling import check_template_kwargs, fail
from gateway.edge.schema.tools import plan_tools
from wire.messages import Request
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text (`prompt`) or a conversation (`messages`); `model` may be left out where only one is served."""

    model: str | None = None
    prompt: str | None = None
    messages: list[MessageIn] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to be written out."""

    tokens: list[int]
    model: str | None = None


def translate_tokenize(body: TokenizeRequest, card: ModelCard, pictures: Pictures | None = None) -> Request:
    """Check the body and return what the tokenizer desk is asked. Raises InvalidRequestError naming the field."""
    if (body.prompt is None) == (body.messages is None):
        raise fail("prompt", "exactly one of prompt and messages is needed.")
    if body.continue_final_message:
        raise fail("continue_final_message", "is not supported.")
    if body.chat_template is not None:
        raise fail("chat_template", "the server's template cannot be replaced.")
    if body.messages is None:
        return Request(kind="text", model=card.name, prompt_text=body.prompt or "")
    if body.add_special_tokens:
        raise fail("add_special_tokens", "is for prompts; the chat template writes a conversation's control tokens.")
    check_number(body.messages)
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")
    return Request(
        model=card.name,
        messages=tuple(
            translate_message(message, f"messages[{at}]", pictures) for at, message in enumerate(body.messages)
        ),
        tools=plan_tools(body.tools, None, None, card).tools,
        template_kwargs=check_template_kwargs(body.chat_template_kwargs),
    )


def token_texts(ids: list[int], vocabulary: Vocabulary) -> list[str]:
    """Return each token's text; control tokens by their own, half characters as U+FFFD."""
    special = {token_id: text for text, token_id in vocabulary.special.items()}
    return [special.get(one) or vocabulary.token_bytes(one).decode("utf-8", "replace") for one in ids]


def detokenized(ids: list[int], card: ModelCard, vocabulary: Vocabulary) -> str:
    """Return the text of token ids, control tokens included. Raises InvalidRequestError for what is no id."""
    special = {token_id: text.encode() for text, token_id in vocabulary.special.items()}
    for token_id in ids:
        if not 0 <= token_id < card.vocab_size:
            raise fail("tokens", f"{token_id} is no token id; the vocabulary has {card.vocab_size}.")
    raw = b"".join(special.get(token_id) or vocabulary.token_bytes(token_id) for token_id in ids)
    if vocabulary.strips_first_space and ids and ids[0] not in special:
        raw = raw.removeprefix(b" ")
    return raw.decode("utf-8", "replace")

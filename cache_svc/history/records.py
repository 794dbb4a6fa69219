"""What is stored of a turn, as msgpack: what was said, what the response was, and the token ids of both."""

from __future__ import annotations

from typing import Any

import msgspec

from wire.messages import ChatMessage


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """The messages of a turn; every one has its `item_id`.

    `items` are the output items as the client got them, kept only if they cannot be made from `output` again.
    """

    input: tuple[ChatMessage, ...] = ()
    output: tuple[ChatMessage, ...] = ()
    status: str = "completed"
    items: tuple[dict[str, Any], ...] | None = None


class Meta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """The rest of a response: `response` is the object that the client got, without its `output`."""

    model: str
    created_at: float = 0.0
    usage: dict[str, Any] = {}
    response: dict[str, Any] = {}


class TokenIds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """Ids of prompt and answer: the first `shared` ids of the parent turn, then `tail` (packed int32).

    `whole`: no earlier message was left out of the prompt.
    """

    model: str
    shared: int = 0
    tail: bytes = b""
    whole: bool = True

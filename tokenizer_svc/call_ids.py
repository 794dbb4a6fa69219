"""Ids of tool calls for templates that take only their own: Mistral's nine letters and digits, Kimi's name and number.

A conversation may come from another server, whose ids look different; each is replaced by one of its own, always the
same, so that calls and results still belong together and the next prompt is the cached one.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from wire.messages import ChatMessage

_LENGTH = 9
_ALPHABET = string.ascii_letters + string.digits


def with_short_ids(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with ids that the templates take."""
    return [_shortened(message) for message in messages]


def with_numbered_ids(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with calls numbered through the conversation, as Kimi K2 was taught: `functions.name:3`."""
    told: list[ChatMessage] = []
    numbered: dict[str, str] = {}
    count = 0
    for message in messages:
        calls = []
        for call in message.tool_calls:
            numbered[call.id] = f"functions.{call.name}:{count}"
            calls.append(msgspec.structs.replace(call, id=numbered[call.id]))
            count += 1
        result_of = numbered.get(message.tool_call_id or "", message.tool_call_id)
        told.append(msgspec.structs.replace(message, tool_calls=tuple(calls), tool_call_id=result_of))
    return told


def _shortened(message: ChatMessage) -> ChatMessage:
    if not message.tool_calls and message.tool_call_id is None:
        return message
    calls = tuple(msgspec.structs.replace(call, id=_short(call.id)) for call in message.tool_calls)
    result_of = None if message.tool_call_id is None else _short(message.tool_call_id)
    return msgspec.structs.replace(message, tool_calls=calls, tool_call_id=result_of)


def _short(call_id: str) -> str:
    if len(call_id) == _LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    digest = blake2b(call_id.encode(), digest_size=_LENGTH).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)

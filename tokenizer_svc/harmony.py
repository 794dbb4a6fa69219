"""Conversations as gpt-oss's template takes them: it reads one call of a message, no more, and leaves out the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from tokenizer_svc.conversation import system_folded
from wire.messages import ChatMessage


def as_harmony(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages of which the template leaves nothing out but thoughts that led to an answer.

    System messages stand at the beginning, or in the user's. Each call is a message of its own, with its result behind
    it: of a result the template says only whose it is, by the call before. What was said before a call joins the
    thoughts that led to it, as the template takes one of both.
    """
    told: list[ChatMessage] = []
    asked: dict[str, list[ChatMessage]] = {}  # calls, by their ids, with the results that have come
    for message in system_folded(messages) or messages:
        if message.role == "tool" and message.tool_call_id in asked:
            asked[message.tool_call_id].append(message)
            continue
        told += chain.from_iterable(asked.values())
        asked = {}
        for call in _apart(message):
            asked.setdefault(call.tool_calls[0].id if call.tool_calls else "", []).append(call)
    return [*told, *chain.from_iterable(asked.values())]


def _apart(message: ChatMessage) -> list[ChatMessage]:
    """Return a message for each call."""
    if message.role != "assistant":
        return [message]
    if not message.tool_calls:
        return [msgspec.structs.replace(message, reasoning="")]
    thoughts = "\n\n".join(filter(None, (message.reasoning, message.content)))
    first, *others = message.tool_calls
    return [
        msgspec.structs.replace(message, content="", reasoning=thoughts, tool_calls=(first,)),
        *(ChatMessage(role="assistant", tool_calls=(call,)) for call in others),
    ]


def with_descriptions(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools, each with a description: the template wants one."""
    return [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools]

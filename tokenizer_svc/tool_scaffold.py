"""Tools for models whose chat template knows none: told in the system message, written and answered as plain text.

The form is the one that Hermes and Qwen made common (and SmolLM2's makers trained on): calls between <tool_call> tags,
results between <tool_response> tags in a user's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tokenizer_svc.conversation import with_system
from wire.messages import ChatMessage, ToolCall

_BEFORE = """# Tools

You can call functions to help with the user's request. These functions are available, one JSON object a line:
<tools>
"""
_AFTER = """
</tools>

To call a function, write a JSON object with its name and its arguments between tags, for each call:
<tool_call>
{"name": <function name>, "arguments": <object of arguments>}
</tool_call>
The result comes back between <tool_response> tags. When no function is needed, answer as usual."""


def spell_out(messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> Sequence[ChatMessage]:
    """Return the messages with the tools told, and calls and results as text."""
    if any(message.tool_calls or message.role == "tool" for message in messages):
        messages = _as_text(messages)
    if not tools:
        return messages
    listed = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
    return with_system(messages, f"{_BEFORE}{listed}{_AFTER}")


def _as_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Results in a row are one turn: many templates want user and assistant to take turns."""
    texts: list[ChatMessage] = []
    after_result = False
    for message in messages:
        if message.role == "tool":
            result = ["<tool_response>\n", *message.parts, "\n</tool_response>"]
            if after_result:
                result = [*texts.pop().parts, "\n", *result]
            message = ChatMessage(role="user").saying(result)
            after_result = True
        else:
            after_result = False
            if message.tool_calls:
                parts = [message.content] if message.content else []
                content = "\n".join([*parts, *map(_call, message.tool_calls)])
                message = msgspec.structs.replace(message, content=content, tool_calls=())
        texts.append(message)
    return texts


def _call(call: ToolCall) -> str:
    """Write a call as the model would; arguments stay as they came."""
    name = msgspec.json.encode(call.name).decode()
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'

"""Safety rules on what the client sends: a blocked prompt is refused with 400 `content_filter`, in both modes alike."""

from __future__ import annotations

import anyio.to_thread
import msgspec

from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.policy import SafetyPolicy
from wire.errors import ContentFilterError
from wire.messages import ChatMessage, Request

_BIG = 2_000  # characters that may take a millisecond


async def screen(request: Request, policy: SafetyPolicy | None, field: str) -> Request:
    """Return the request with redactions made. Raises ContentFilterError naming the message that is blocked."""
    if policy is None or not policy.has_rules("prompt"):
        return request
    if sum(len(message.content) for message in request.messages) + len(request.instructions or "") < _BIG:
        return _screen(request, policy, field)
    return await anyio.to_thread.run_sync(_screen, request, policy, field)


def _screen(request: Request, policy: SafetyPolicy, field: str) -> Request:
    messages = tuple(_screen_message(message, policy, f"{field}[{at}]") for at, message in enumerate(request.messages))
    instructions = request.instructions
    if instructions:
        instructions = _clean(instructions, policy, "instructions")
    return msgspec.structs.replace(request, messages=messages, instructions=instructions)


def _screen_message(message: ChatMessage, policy: SafetyPolicy, where: str) -> ChatMessage:
    return msgspec.structs.replace(message, content=_clean(message.content, policy, where))


def _clean(text: str, policy: SafetyPolicy, where: str) -> str:
    cleaned, _hits, blocked_by = check(policy, text, "prompt")
    if blocked_by is not None:
        raise ContentFilterError(f"{where}: refused by the safety policy.", param=where)
    return cleaned

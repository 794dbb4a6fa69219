"""Safety rules on what the client sends, before it is admitted: a blocked prompt is refused with 400 `content_filter`.

Screened is all text that reaches the model: messages, what earlier tool calls were given, instructions, the prompts of
raw completions. Token ids are screened as the text they stand for; since ids cannot be redacted, a match blocks them.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio.to_thread
import msgspec

from gateway.edge.safety import Safety
from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from wire.errors import ContentFilterError
from wire.messages import ChatMessage, Request

_BIG = 2_000  # characters that may take a millisecond

Clean = Callable[[str, str], str]  # (text, where it stands in the request) -> the text that may go on


async def screen(request: Request, safety: Safety | None, field: str) -> Request:
    """Return the request with redactions made. Raises ContentFilterError naming the message that is blocked."""
    policy = safety.for_request(request) if safety is not None else None
    if safety is None or policy is None or not policy.has_rules("prompt"):
        return request
    screening = _Screening(request, policy, safety, field)
    try:
        if screening.num_chars < _BIG:
            screened = screening.find()
        else:
            screened = await anyio.to_thread.run_sync(screening.find)
        return await screening.judge(screened) if policy.judged("prompt") else screened
    finally:
        await safety.audit.note(screening.hits, tenant=request.tenant, model=request.model)


class _Screening:
    """One request before the rules for prompts."""

    def __init__(self, request: Request, policy: SafetyPolicy, safety: Safety, field: str) -> None:
        self._request = request
        self._policy = policy
        self._safety = safety
        self._field = field
        self.hits: list[Hit] = []
        self.num_chars = sum(len(message.content) for message in request.messages)
        self.num_chars += len(request.instructions or "") + len(request.prompt_text) + len(request.prompt_ids)

    def find(self) -> Request:
        """Apply the rules that match."""
        request = self._request
        if request.prompt_ids:
            text = self._safety.text_of(request)
            _, hits, _ = check(self._policy, text, "prompt")
            self.hits += hits
            if any(hit.action != "flag" for hit in hits):
                raise _refused(self._field)
        return _rewritten(request, self._field, self._clean)

    def _clean(self, text: str, where: str) -> str:
        cleaned, hits, blocked_by = check(self._policy, text, "prompt")
        self.hits += hits
        if blocked_by is not None:
            raise _refused(where)
        return cleaned

    async def judge(self, request: Request) -> Request:
        """Put what the matching rules left before the rules that judge."""
        if request.prompt_ids:
            await self._judge(self._safety.text_of(request), self._field, redacts=False)
        texts: dict[tuple[str, str], str] = {}

        def collect(text: str, where: str) -> str:
            texts[text, where] = text
            return text

        _rewritten(request, self._field, collect)
        for text, where in texts:
            texts[text, where] = await self._judge(text, where)
        return _rewritten(request, self._field, lambda text, where: texts[text, where])

    async def _judge(self, text: str, where: str, *, redacts: bool = True) -> str:
        judged, hits = await self._safety.judge_whole(self._policy, "prompt", text)
        self.hits += hits
        if any(hit.action == "block" or (hit.action == "redact" and not redacts) for hit in hits):
            raise _refused(where)
        return judged


def _refused(where: str) -> ContentFilterError:
    return ContentFilterError(f"{where}: refused by the safety policy.", param=where)


def _rewritten(request: Request, field: str, clean: Clean) -> Request:
    """Return the request with each of its texts as `clean` gives it."""
    instructions = clean(request.instructions, "instructions") if request.instructions else request.instructions
    reply = request.reply
    if reply.get("instructions"):  # the answer repeats them, and is stored
        reply = {**reply, "instructions": instructions}
    return msgspec.structs.replace(
        request,
        reply=reply,
        messages=tuple(
            _rewritten_message(message, f"{field}[{at}]", clean) for at, message in enumerate(request.messages)
        ),
        instructions=instructions,
        prompt_text=clean(request.prompt_text, field) if request.prompt_text else "",
    )


def _rewritten_message(message: ChatMessage, where: str, clean: Clean) -> ChatMessage:
    calls = tuple(
        msgspec.structs.replace(call, arguments=clean(call.arguments, where) if call.arguments else "")
        for call in message.tool_calls
    )
    return msgspec.structs.replace(
        message,
        content=clean(message.content, where) if message.content else "",
        reasoning=clean(message.reasoning, where) if message.reasoning else "",
        tool_calls=calls,
    )

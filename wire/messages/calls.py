"""Questions outside a request, their answers, and the audit log."""

from __future__ import annotations

from typing import Any

import msgspec

from wire.messages.base import Message
from wire.messages.record import Recalled
from wire.messages.request import Request

MAX_METADATA = 16  # pairs of a conversation or a response: as many as the API takes, so no more are shown


class HistoryCall(Message, frozen=True, kw_only=True):
    """Edge -> history: a query outside a chat request. `op` names the operation, `args` its arguments."""

    call_id: str
    edge: str
    op: str
    tenant: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    deadline: float = 0.0


class HistoryReply(Message, frozen=True, kw_only=True):
    """History -> edge: `result`, or an error code with a message."""

    call_id: str
    result: Any = None
    code: str | None = None
    message: str = ""
    param: str | None = None


class SafetyEvent(Message, frozen=True, kw_only=True):
    """Edge -> audit log: a safety rule acted on characters start .. end - 1 of a text. The text is not in it.

    `digest` is a keyed hash of what matched. `failed`: the rule's judge gave no verdict, and that is why it acted.
    """

    request_id: str
    rule: str
    action: str
    direction: str
    start: int
    end: int
    digest: str = ""
    failed: bool = False
    tenant: str = ""
    model: str = ""
    choice: int = 0
    at: float = 0.0


class TokenizeCall(Message, frozen=True, kw_only=True):
    """Edge -> tokenizer: what are the ids of this request's text, or of its conversation?

    `add_special_tokens` is for texts, `add_generation_prompt` for conversations: do the ids go on to the place where an
    answer begins? `recalled` is what was said before the request's messages.
    """

    call_id: str
    edge: str
    request: Request
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    deadline: float = 0.0
    recalled: Recalled | None = None


class TokenizeReply(Message, frozen=True, kw_only=True):
    """Tokenizer -> edge: packed `token_ids`, or an error code with a message."""

    call_id: str
    token_ids: bytes = b""
    code: str | None = None
    message: str = ""
    param: str | None = None

"""What goes round the ring, and against it."""

from __future__ import annotations

from typing import Any

import msgspec

from wire.messages.base import Message
from wire.messages.record import Checkpoint
from wire.messages.request import ChatMessage, ConversationRef


class Job(Message, frozen=True, kw_only=True):
    """The envelope of a request on its way round the ring.

    `deadline` is Unix time in seconds. `timings_ms` collects `<desk>.wait` and `<desk>.work` of the desks passed.
    Requests with the same `affinity` are placed together if they can. `edge` is the inbox that gets tokens and
    failures. `traceparent`/`tracestate`: W3C context of the request span.
    """

    request_id: str
    partition: int
    model: str
    edge: str
    deadline: float
    attempt: int = 0
    traceparent: str = ""
    tracestate: str = ""
    timings_ms: dict[str, float] = msgspec.field(default_factory=dict)
    affinity: str = ""


class Turn(Message, frozen=True, kw_only=True):
    """Edge -> history at the end of a stored request: what was said, and its token ids. Idempotent by `response_id`.

    `status` is completed, incomplete (max tokens, client gone) or failed. `prompt_ids` holds prompt and answer ids.
    """

    request_id: str
    attempt: int
    partition: int
    model: str
    tenant: str
    response_id: str
    conversation: ConversationRef
    input: tuple[ChatMessage, ...]
    output: tuple[ChatMessage, ...]
    prompt_ids: bytes = b""
    status: str = "completed"
    usage: dict[str, Any] = msgspec.field(default_factory=dict)
    created_at: float = 0.0
    response: dict[str, Any] = msgspec.field(default_factory=dict)


class Cancel(Message, frozen=True, kw_only=True):
    """Edge -> replica: stop this request (all its choices, or one)."""

    request_id: str
    attempt: int
    reason: str = "client_gone"
    choice: int | None = None


class EndReasoning(Message, frozen=True, kw_only=True):
    """Edge -> replica: close the open think block at the next step."""

    request_id: str


class Resubscribe(Message, frozen=True, kw_only=True):
    """Edge -> replica: send this request's tokens again from `from_index` on, to `edge` from now on.

    A replica that knows nothing of the request says so with a Failure of this `attempt`; -1: it stays silent, for it
    may be about to get the job.
    """

    request_id: str
    edge: str
    choice: int = 0
    from_index: int = 0
    attempt: int = -1


class ReportTokens(Message, frozen=True, kw_only=True):
    """Balancer -> edge: which tokens of this request do you have? Its replica is lost. Answer to `reply_to`."""

    request_id: str
    reply_to: str


class TokenReport(Message, frozen=True, kw_only=True):
    """Edge -> balancer: the tokens it has of a request, shown or about to be; None: it knows no such request."""

    request_id: str
    checkpoint: Checkpoint | None = None


class Failure(Message, frozen=True, kw_only=True):
    """Any desk -> edge: the request ends here with an error (see wire.errors for the code)."""

    request_id: str
    attempt: int
    code: str
    message: str
    param: str | None = None
    desk: str = ""

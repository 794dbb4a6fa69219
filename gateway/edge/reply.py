"""What an HTTP answer is made of, whatever the dialect: updates of choices come in, bytes or a whole object go out."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from gateway.edge.bill import Bill
from gateway.postprocess.pipeline import TextDelta
from wire.errors import HeadraceError
from wire.messages import ChatMessage


class ChoiceUpdate(msgspec.Struct):
    """What is new of one choice: text that may be shown, and its finish reason when it ended."""

    choice: int
    deltas: list[TextDelta]
    finish_reason: str | None = None


class Reply(Protocol):
    """One answer in one dialect. `absorb` and `events` take the same updates; a whole answer needs no events."""

    def opening(self) -> bytes:
        """Return the events that come before any token."""

    def events(self, updates: list[ChoiceUpdate]) -> bytes:
        """Take updates in and return their events."""

    def absorb(self, updates: list[ChoiceUpdate]) -> None:
        """Take updates in for `whole`."""

    def closing(self, bill: Bill) -> bytes:
        """Return the last events, the end mark included."""

    def failure(self, error: HeadraceError) -> bytes:
        """Return the last events of a stream that failed after its first byte."""

    def whole(self, bill: Bill) -> dict[str, Any]:
        """Return the whole answer."""

    def stored(self, bill: Bill, status: str, error: HeadraceError | None = None) -> dict[str, Any]:
        """Return the object that a later GET shows, for an answer that is stored."""

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return the answer as messages of a conversation."""


def merged(deltas: list[TextDelta]) -> list[TextDelta]:
    """Join neighbours of one kind, so that a slow client gets few large events."""
    joined: list[TextDelta] = []
    for delta in deltas:
        if joined and joined[-1].kind == delta.kind:
            last = joined[-1]
            joined[-1] = TextDelta(kind=last.kind, text=last.text + delta.text, logprobs=last.logprobs + delta.logprobs)
        else:
            joined.append(delta)
    return joined

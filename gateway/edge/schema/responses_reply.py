"""The Responses API, outwards: the response object, and the events that build it up.

Text of one kind in a row is one output item. Items close when another begins or the answer ends. There is no [DONE] in
this dialect; the last event is response.completed, .incomplete or .failed (which also ends a cancelled one: there is no
event of that name). A safety rule that cuts the answer off ends its message with a refusal.
"""

from __future__ import annotations

import time
from typing import Any

from gateway.edge.bill import Bill
from gateway.edge.jsontext import to_json
from gateway.edge.reply import ChoiceUpdate, merged
from gateway.edge.schema.called import call_of
from gateway.edge.schema.output_item import CallItem, Event, MessageItem, OutputItem, ReasoningItem
from gateway.edge.schema.response_object import INCOMPLETE, RUNNING, call_item_id, error_of, item_id
from gateway.postprocess.delta import TextDelta
from wire.errors import HeadraceError, RequestCancelledError, UnreadError
from wire.messages import ChatMessage, Request

REFUSAL = "The answer was stopped by the server's safety policy."


class ResponsesReply:
    """The answer to one request of the Responses API."""

    def __init__(self, request: Request) -> None:
        assert request.conversation is not None
        self._id = request.conversation.response_id
        self._base = request.reply
        self._logprobs = request.sampling.logprobs is not None
        self._items: list[OutputItem] = []
        self._finish_reason: str | None = None
        self._sequence_number = 0
        self._has_started = False
        self._last_events: list[Event] = []
        self._whole: dict[str, Any] | None = None

    def begun(self, status: str) -> dict[str, Any]:
        """Return the response as it is before any text."""
        return self._response(status)

    @property
    def id(self) -> str:
        """Return the id of the answer."""
        return self._id

    def opening(self) -> bytes:
        """Return response.created and response.in_progress; a response of the background is queued first."""
        if self._base["background"]:
            response = self._response("queued")
            return self._encode(
                [("response.created", {"response": response}), ("response.queued", {"response": response})]
            )
        return self._encode([("response.created", {"response": self._response("in_progress")}), *self._start()])

    @property
    def sequence_number(self) -> int:
        """Return the number of the next event."""
        return self._sequence_number

    def resume(self, updates: list[ChoiceUpdate], sequence_number: int, *, has_started: bool) -> None:
        """Go on behind the events that another edge has written: they told of these updates."""
        self.absorb(updates)
        self._has_started = has_started
        self._sequence_number = sequence_number

    def events(self, updates: list[ChoiceUpdate]) -> bytes:
        """Return a delta for each run of text; items open and close as the kind changes."""
        events = self._start()
        for update in updates:
            for delta in merged(update.deltas):
                events += self._say(delta)
            if update.finish_reason is not None:
                self._finish_reason = update.finish_reason
        return self._encode(events)

    def absorb(self, updates: list[ChoiceUpdate]) -> None:
        """Collect the items without making events."""
        self.events(updates)

    def closing(self, bill: Bill) -> bytes:
        """Close what is open and return the last event with the whole response."""
        response = self.whole(bill)
        return self._encode([*self._last_events, (f"response.{response['status']}", {"response": response})])

    def failure(self, error: HeadraceError) -> bytes:
        """Return response.failed, with what came before the fault."""
        self._end_items(complete=False)
        status = "cancelled" if isinstance(error, RequestCancelledError) else "failed"
        response = self._response(status, error=error)
        return self._encode([*self._last_events, ("response.failed", {"response": response})])

    def whole(self, bill: Bill) -> dict[str, Any]:
        """Return the response object; it is the same at each call."""
        if self._whole is None:
            self._end_items()
            reason = self._finish_reason or ""
            self._whole = self._response("incomplete" if reason in INCOMPLETE else "completed", bill)
        return self._whole

    def stored(self, bill: Bill, status: str, error: HeadraceError | None = None) -> dict[str, Any]:
        """Return the response as a later GET shows it; status "" means that it ended by itself."""
        if not status:
            return self.whole(bill)
        self._end_items(complete=False)
        return self._response(status, bill, error)

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return the answer as one message of the conversation."""
        answers = [item for item in self._items if isinstance(item, MessageItem)]
        return (
            ChatMessage(
                role="assistant",
                content="".join(item.text for item in answers),
                reasoning="".join(item.text for item in self._items if isinstance(item, ReasoningItem)),
                tool_calls=tuple(call_of(item.call, item.text) for item in self._items if isinstance(item, CallItem)),
                item_id=answers[0].id if answers else item_id("msg", self._id),
            ),
        )

    def _start(self) -> list[Event]:
        if self._has_started:
            return []
        self._has_started = True
        return [("response.in_progress", {"response": self._response("in_progress")})]

    def _say(self, delta: TextDelta) -> list[Event]:
        item = self._items[-1] if self._items else None
        events: list[Event] = []
        if item is None or not _continues(item, delta):
            item = self._new(delta)
            events = self._open(item)
        return events + item.add(delta)

    def _new(self, delta: TextDelta) -> OutputItem:
        index = len(self._items)
        if delta.call is not None:
            is_custom = delta.call.form is not None and delta.call.form.custom
            return CallItem(call_item_id(self._id, delta.call.index, is_custom=is_custom), index, delta.call)
        if delta.kind == "reasoning":
            as_summary = bool(self._base["reasoning"]["summary"])
            return ReasoningItem(self._item_id("rs", ReasoningItem), index, as_summary=as_summary)
        return MessageItem(self._item_id("msg", MessageItem), index, logprobs=self._logprobs)

    def _item_id(self, prefix: str, kind: type[OutputItem]) -> str:
        return item_id(prefix, self._id, sum(isinstance(item, kind) for item in self._items))

    def _open(self, item: OutputItem) -> list[Event]:
        events = self._items[-1].close("completed") if self._items else []
        self._items.append(item)
        return events + item.open()

    def _end_items(self, *, complete: bool = True) -> None:
        """Close the last item; an answer that ended by itself has a message or a call, if only an empty message.

        Its events are kept: the response may be stored before they are sent.
        """
        refused = self._finish_reason == "content_filter"
        complete = complete and self._finish_reason not in INCOMPLETE
        events = self._last_events
        only_reasoning = all(isinstance(item, ReasoningItem) for item in self._items)
        if refused or (complete and self._finish_reason and only_reasoning):
            if not self._items or not isinstance(self._items[-1], MessageItem):
                events += self._open(self._new(TextDelta(kind="answer", text="")))
            last = self._items[-1]
            if refused and isinstance(last, MessageItem) and last.status == "in_progress":
                events += last.refuse(REFUSAL)
        if self._items:
            events += self._items[-1].close("completed" if complete else "incomplete")

    def _response(self, status: str, bill: Bill | None = None, error: HeadraceError | None = None) -> dict[str, Any]:
        reason = INCOMPLETE.get(self._finish_reason or "")
        return {
            **self._base,
            "status": status,
            "completed_at": time.time() if status == "completed" else None,
            "error": error_of(error) if error and (status == "failed" or isinstance(error, UnreadError)) else None,
            "incomplete_details": {"reason": reason} if status == "incomplete" and reason else None,
            "output": [item.whole() for item in self._items] if status not in RUNNING else [],
            "usage": bill.responses_usage() if bill else None,
        }

    def _encode(self, events: list[Event]) -> bytes:
        lines: list[bytes] = []
        for kind, fields in events:
            data = to_json({"type": kind, "sequence_number": self._sequence_number, **fields})
            lines.append(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")
            self._sequence_number += 1
        return b"".join(lines)


def _continues(item: OutputItem, delta: TextDelta) -> bool:
    if isinstance(item, CallItem):
        return delta.call is not None and delta.call.id == item.call.id
    return isinstance(item, {"answer": MessageItem, "reasoning": ReasoningItem}.get(delta.kind, ()))

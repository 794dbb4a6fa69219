"""The Responses API, outwards: the response object, and the events that build it up.

Text of one kind in a row is one output item: a reasoning item, a message. Items close when the other kind begins or the
answer ends. There is no [DONE] in this dialect; the last event is response.completed, .incomplete or .failed.
"""

from __future__ import annotations

import time
from typing import Any

from gateway.edge.bill import Bill
from gateway.edge.identity import new_id, root_of
from gateway.edge.jsontext import to_json
from gateway.edge.reply import ChoiceUpdate, merged
from gateway.edge.schema.output_item import OutputItem
from gateway.edge.schema.responses import Reasoning, ResponsesRequest
from gateway.postprocess.pipeline import TextDelta
from wire.errors import HeadraceError
from wire.messages import ChatMessage, Request

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesReply:
    """The answer to one request of the Responses API."""

    def __init__(self, body: ResponsesRequest, request: Request) -> None:
        assert request.conversation is not None
        self._id = request.conversation.response_id
        self._root = root_of(self._id)
        self._base = _echo(body, request)
        self._logprobs = request.sampling.logprobs is not None
        self._items: list[OutputItem] = []
        self._finish_reason: str | None = None
        self._sequence_number = 0
        self._last_events = b""
        self._whole: dict[str, Any] | None = None

    def opening(self) -> bytes:
        """Return response.created and response.in_progress."""
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def events(self, updates: list[ChoiceUpdate]) -> bytes:
        """Return a delta for each run of text; items open and close as the kind changes."""
        events: list[bytes] = []
        for update in updates:
            for delta in merged(update.deltas):
                events += self._say(delta)
            if update.finish_reason is not None:
                self._finish_reason = update.finish_reason
        return b"".join(events)

    def absorb(self, updates: list[ChoiceUpdate]) -> None:
        """Collect the items without making events."""
        self.events(updates)

    def closing(self, bill: Bill) -> bytes:
        """Close what is open and return the last event with the whole response."""
        response = self.whole(bill)
        return self._last_events + self._event(f"response.{response['status']}", response=response)

    def failure(self, error: HeadraceError) -> bytes:
        """Return response.failed, with what came before the fault."""
        self._end_items(complete=False)
        return self._event("response.failed", response=self._response("failed", error=error))

    def whole(self, bill: Bill) -> dict[str, Any]:
        """Return the response object; it is the same at each call."""
        if self._whole is None:
            self._end_items()
            reason = self._finish_reason or ""
            self._whole = self._response("incomplete" if reason in _INCOMPLETE else "completed", bill)
        return self._whole

    def stored(self, bill: Bill, status: str, error: HeadraceError | None = None) -> dict[str, Any]:
        """Return the response as a later GET shows it; status "" means that it ended by itself."""
        if not status:
            return self.whole(bill)
        self._end_items(complete=False)
        return self._response(status, bill, error)

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return the answer as one message of the conversation."""
        answer = "".join(item.text for item in self._items if item.kind == "answer")
        reasoning = "".join(item.text for item in self._items if item.kind == "reasoning")
        item_id = next((item.id for item in self._items if item.kind == "answer"), new_id("msg", self._root))
        return (ChatMessage(role="assistant", content=answer, reasoning=reasoning, item_id=item_id),)

    def _say(self, delta: TextDelta) -> list[bytes]:
        events: list[bytes] = []
        if not self._items or self._items[-1].kind != delta.kind:
            events = self._close_last()
            events += self._open(delta.kind)
        item = self._items[-1]
        logprobs = item.add(delta, keep_logprobs=self._logprobs)
        extra = {"logprobs": logprobs} if item.kind == "answer" else {}
        events.append(self._event(f"{item.stem}.delta", **self._place(item), delta=delta.text, **extra))
        return events

    def _open(self, kind: str) -> list[bytes]:
        item = OutputItem(kind, new_id("msg" if kind == "answer" else "rs", self._root), len(self._items))
        self._items.append(item)
        added = self._event("response.output_item.added", output_index=item.index, item=item.opened())
        return [added, self._event("response.content_part.added", **self._place(item), part=item.part(empty=True))]

    def _close_last(self, status: str = "completed") -> list[bytes]:
        if not self._items or self._items[-1].status != "in_progress":
            return []
        item = self._items[-1]
        item.status = status
        extra = {"logprobs": item.logprobs} if item.kind == "answer" else {}
        return [
            self._event(f"{item.stem}.done", **self._place(item), text=item.text, **extra),
            self._event("response.content_part.done", **self._place(item), part=item.part()),
            self._event("response.output_item.done", output_index=item.index, item=item.whole()),
        ]

    def _end_items(self, *, complete: bool = True) -> None:
        """Close the last item; an answer that ended by itself has a message, if only an empty one.

        Its events are kept: the response may be stored before they are sent.
        """
        complete = complete and self._finish_reason not in _INCOMPLETE
        events: list[bytes] = []
        if complete and self._finish_reason and not any(item.kind == "answer" for item in self._items):
            events = self._close_last()
            events += self._open("answer")
        self._last_events += b"".join(events + self._close_last("completed" if complete else "incomplete"))

    def _response(self, status: str, bill: Bill | None = None, error: HeadraceError | None = None) -> dict[str, Any]:
        reason = _INCOMPLETE.get(self._finish_reason or "")
        return {
            **self._base,
            "status": status,
            "completed_at": time.time() if status == "completed" else None,
            "error": {"code": "server_error", "message": error.message} if error else None,
            "incomplete_details": {"reason": reason} if status == "incomplete" and reason else None,
            "output": [item.whole() for item in self._items] if status != "in_progress" else [],
            "usage": bill.responses_usage() if bill else None,
        }

    def _place(self, item: OutputItem) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": item.index, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return b"event: " + kind.encode() + b"\ndata: " + to_json(data) + b"\n\n"


def _echo(body: ResponsesRequest, request: Request) -> dict[str, Any]:
    """Return the fields of a response that repeat what was asked for."""
    reference = request.conversation
    assert reference is not None
    reasoning = body.reasoning or Reasoning()
    logprobs = request.sampling.logprobs
    return {
        "id": reference.response_id,
        "object": "response",
        "created_at": int(request.created_at),
        "background": False,
        "conversation": {"id": reference.conversation_id} if reference.conversation_id else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": request.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": reference.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": reference.store,
        "temperature": request.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": list(request.tools),
        "top_logprobs": logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": reference.truncation,
        "user": body.user,
    }

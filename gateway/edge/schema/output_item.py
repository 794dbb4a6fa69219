"""The items of a response's output while they grow: reasoning, a message, a call.

Each tells its own story as events: `open`, some `add`, `close`. Ids follow from the response's id and the place of the
item, so that another edge that goes on with the response gives the same ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from gateway.edge.schema.logprobs import logprob_object
from gateway.postprocess.delta import CallRef, TextDelta
from wire.messages import ToolForm

Event = tuple[str, dict[str, Any]]
"""The type of an event and its fields; the reply adds the number."""


class OutputItem(ABC):
    """One item. `status` is in_progress until it is closed."""

    def __init__(self, item_id: str, index: int) -> None:
        self.id = item_id
        self.index = index
        self.status = "in_progress"

    @property
    @abstractmethod
    def text(self) -> str:
        """Return all that was added."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the item as it is now."""

    @abstractmethod
    def add(self, delta: TextDelta) -> list[Event]:
        """Append text; return the events."""

    @abstractmethod
    def _parts_done(self) -> list[Event]:
        """Return the events that end what is open inside the item."""

    def open(self) -> list[Event]:
        """Return the events that begin the item."""
        return [("response.output_item.added", {"output_index": self.index, "item": self.whole()})]

    def close(self, status: str) -> list[Event]:
        """End the item; return the events. Nothing happens to one that is closed."""
        if self.status != "in_progress":
            return []
        events = self._parts_done()
        self.status = status
        return [*events, ("response.output_item.done", {"output_index": self.index, "item": self.whole()})]

    def _at(self, **fields: Any) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, **fields}


class MessageItem(OutputItem):
    """What the assistant says: a text, and a refusal behind it if a safety rule cut it off."""

    def __init__(self, item_id: str, index: int, *, logprobs: bool = False) -> None:
        super().__init__(item_id, index)
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._keeps_logprobs = logprobs
        self._has_text = False
        self._refusal: str | None = None

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(self._texts)

    def open(self) -> list[Event]:
        """Return the events that begin the message and its text."""
        added = super().open()
        self._has_text = True
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [*added, ("response.content_part.added", self._at(content_index=0, part=part))]

    def add(self, delta: TextDelta) -> list[Event]:
        """Append text with its log probabilities."""
        self._texts.append(delta.text)
        new = [logprob_object(entry) for entry in delta.logprobs] if self._keeps_logprobs else []
        self._logprobs += new
        return [("response.output_text.delta", self._at(content_index=0, delta=delta.text, logprobs=new))]

    def refuse(self, reason: str) -> list[Event]:
        """Add a refusal behind the text, which ends there."""
        events = self._text_done()
        self._refusal = reason
        at = self._at(content_index=1)
        return [
            *events,
            ("response.content_part.added", {**at, "part": {"type": "refusal", "refusal": ""}}),
            ("response.refusal.delta", {**at, "delta": reason}),
            ("response.refusal.done", {**at, "refusal": reason}),
            ("response.content_part.done", {**at, "part": {"type": "refusal", "refusal": reason}}),
        ]

    def whole(self) -> dict[str, Any]:
        """Return the message."""
        content = [self._text_part()] if self._has_text else []
        if self._refusal is not None:
            content.append({"type": "refusal", "refusal": self._refusal})
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def _parts_done(self) -> list[Event]:
        return self._text_done() if self._refusal is None else []

    def _text_done(self) -> list[Event]:
        at = self._at(content_index=0)
        return [
            ("response.output_text.done", {**at, "text": self.text, "logprobs": self._logprobs}),
            ("response.content_part.done", {**at, "part": self._text_part()}),
        ]

    def _text_part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self._logprobs}


class ReasoningItem(OutputItem):
    """What the model thinks, as it is (`content`), or where a summary was asked for, in the summary's place."""

    def __init__(self, item_id: str, index: int, *, as_summary: bool = False) -> None:
        super().__init__(item_id, index)
        self._texts: list[str] = []
        self._is_open = False
        self._name = "summary" if as_summary else "content"
        self._type = "summary_text" if as_summary else "reasoning_text"
        self._part_event = "response.reasoning_summary_part" if as_summary else "response.content_part"
        self._text_event = "response.reasoning_summary_text" if as_summary else "response.reasoning_text"

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(self._texts)

    def open(self) -> list[Event]:
        """Return the events that begin the item and its text."""
        added = super().open()
        self._is_open = True
        return [*added, (f"{self._part_event}.added", self._place(part={"type": self._type, "text": ""}))]

    def add(self, delta: TextDelta) -> list[Event]:
        """Append thoughts."""
        self._texts.append(delta.text)
        return [(f"{self._text_event}.delta", self._place(delta=delta.text))]

    def whole(self) -> dict[str, Any]:
        """Return the item."""
        parts = [{"type": self._type, "text": self.text}] if self._is_open else []
        return {"id": self.id, "type": "reasoning", "summary": [], "content": [], self._name: parts} | {
            "status": self.status
        }

    def _parts_done(self) -> list[Event]:
        return [
            (f"{self._text_event}.done", self._place(text=self.text)),
            (f"{self._part_event}.done", self._place(part={"type": self._type, "text": self.text})),
        ]

    def _place(self, **fields: Any) -> dict[str, Any]:
        return self._at(**{f"{self._name}_index": 0}, **fields)


class CallItem(OutputItem):
    """A call: of a function, with arguments of JSON text, or of a custom tool, with free text."""

    def __init__(self, item_id: str, index: int, call: CallRef) -> None:
        super().__init__(item_id, index)
        self.call = call
        form = call.form or ToolForm(name=call.name)
        self._names = {"name": form.name} | ({"namespace": form.namespace} if form.namespace else {})
        self._type, self._text_name, self._event = _CALLS[form.custom]
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """Return what it is called with."""
        return "".join(self._texts)

    def add(self, delta: TextDelta) -> list[Event]:
        """Append to what it is called with."""
        if not delta.text:  # the call is only announced
            return []
        self._texts.append(delta.text)
        return [(f"{self._event}.delta", self._at(delta=delta.text))]

    def whole(self) -> dict[str, Any]:
        """Return the call."""
        call = {"call_id": self.call.id, **self._names, self._text_name: self.text}
        return {"id": self.id, "type": self._type, **call, "status": self.status}

    def _parts_done(self) -> list[Event]:
        return [(f"{self._event}.done", self._at(name=self._names["name"], **{self._text_name: self.text}))]


_CALLS = {
    False: ("function_call", "arguments", "response.function_call_arguments"),
    True: ("custom_tool_call", "input", "response.custom_tool_call_input"),
}

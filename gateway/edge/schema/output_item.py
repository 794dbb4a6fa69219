"""One item of a response's output while it grows: a reasoning item or a message."""

from __future__ import annotations

from typing import Any

from gateway.edge.schema.logprobs import logprob_object
from gateway.postprocess.pipeline import TextDelta


class OutputItem:
    """Text of one kind in a row. `stem` starts the names of its text events."""

    def __init__(self, kind: str, item_id: str, index: int) -> None:
        self.kind = kind
        self.id = item_id
        self.index = index
        self.status = "in_progress"
        self.logprobs: list[dict[str, Any]] = []
        self.stem = "response.output_text" if kind == "answer" else "response.reasoning_text"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(self._texts)

    def add(self, delta: TextDelta, *, keep_logprobs: bool) -> list[dict[str, Any]]:
        """Append text; return the log probabilities that came with it."""
        self._texts.append(delta.text)
        new = [logprob_object(entry) for entry in delta.logprobs] if keep_logprobs else []
        self.logprobs += new
        return new

    def part(self, *, empty: bool = False) -> dict[str, Any]:
        """Return the content part."""
        text = "" if empty else self.text
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = [] if empty else self.logprobs
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def opened(self) -> dict[str, Any]:
        """Return the item as it looks before any text."""
        return self._item([])

    def whole(self) -> dict[str, Any]:
        """Return the item with its text."""
        return self._item([self.part()])

    def _item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": self.status}
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

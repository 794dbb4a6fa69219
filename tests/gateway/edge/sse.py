"""A strict reader of event streams: lines end at LF, CRLF and CR only (WHATWG rules); comments are kept apart."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_LINES = re.compile(r"\r\n|\n|\r")


@dataclass
class Event:
    """One dispatched event."""

    data: str
    name: str = "message"
    fields: list[str] = field(default_factory=list)

    def json(self) -> Any:
        """Return the data as JSON."""
        return json.loads(self.data)


@dataclass
class Stream:
    """A whole body, read."""

    events: list[Event]
    comments: list[str]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Return the data of all events but [DONE]."""
        return [event.json() for event in self.events if event.data != "[DONE]"]

    def text(self, index: int = 0, name: str = "content") -> str:
        """Return the joined deltas of a choice."""
        return "".join(
            choice["delta"].get(name) or ""
            for chunk in self.chunks
            for choice in chunk.get("choices", ())
            if choice["index"] == index
        )

    def finish_reason(self, index: int = 0) -> str | None:
        """Return the finish reason of a choice."""
        found = [
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk.get("choices", ())
            if choice["index"] == index and choice["finish_reason"]
        ]
        assert len(found) <= 1, "a choice ends once"
        return found[0] if found else None


def read(body: str) -> Stream:
    """Read a body. AssertionError for a comment inside an event or an event that is not ended."""
    stream = Stream([], [])
    data: list[str] = []
    name = "message"
    fields: list[str] = []
    for line in _LINES.split(body):
        if not line:
            if data:
                stream.events.append(Event("\n".join(data), name, fields))
            data, name, fields = [], "message", []
        elif line.startswith(":"):
            assert not fields, "a comment inside an event"
            stream.comments.append(line[1:].strip())
        else:
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields.append(key)
            if key == "data":
                data.append(value)
            elif key == "event":
                name = value
    assert not fields, "the last event is not ended by a blank line"
    return stream

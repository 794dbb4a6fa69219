"""One entry of a stream in the hands of one consumer, and what became of handing it on."""

from __future__ import annotations

import enum
from typing import Any

from wire.messages import AnyMessage


class HandOff(enum.Enum):
    """What `Bus.hand_off` did: handed on, came too late (somebody else was first), or found the job over."""

    DONE = "done"
    LOST = "lost"
    CANCELLED = "cancelled"


class Delivery:
    """A message and the entry that carried it; it is ours until it is handed on, finished, failed or set aside.

    `published_at` is the sender's clock (Unix seconds). `times_delivered` counts this delivery too. `record` holds the
    fields that came along with it, None if they must be asked for.
    """

    __slots__ = (
        "_open", "consumer", "entry_id", "group", "message", "published_at", "record", "stream", "times_delivered"
    )  # fmt: skip

    def __init__(
        self,
        *,
        stream: str,
        group: str,
        consumer: str,
        entry_id: str,
        message: AnyMessage,
        published_at: float = 0.0,
        times_delivered: int = 1,
        open_ids: set[str] | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        self.stream = stream
        self.group = group
        self.consumer = consumer
        self.entry_id = entry_id
        self.message = message
        self.published_at = published_at
        self.times_delivered = times_delivered
        self.record = record
        self._open = open_ids if open_ids is not None else set()
        self._open.add(entry_id)

    def close(self) -> None:
        """Forget the entry: its consumer stops keeping it alive."""
        self._open.discard(self.entry_id)

    def __repr__(self) -> str:
        return f"Delivery({self.stream} {self.entry_id} {type(self.message).__name__} #{self.times_delivered})"

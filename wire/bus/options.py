"""How patient the bus is and how long its streams may grow.

Every stream is bounded; what happens when one is full stands beside its bound.
"""

from __future__ import annotations

import msgspec

from wire import topics

MAX_DELIVERIES = 3
"""A job that was delivered so often without being handed on goes to the dead letters."""

RING_MAXLEN = 10_000
"""Jobs waiting at one desk. Full: admission raises OverloadedError, a hand-off ends the job with it."""

DEAD_LETTER_MAXLEN = 1_000
"""Dead letters are kept for a human to look at. Full: the oldest is dropped (it was acknowledged long ago)."""

FAILURE_MAXLEN = 20_000
"""Messages in an edge's inbox when a Failure comes. Full: it is dropped; the edge's own deadline ends the request."""

INBOX_TTL_S = 3_600.0
"""An inbox that nobody wrote to for so long is removed: its owner died, ids of edges and replicas never come back."""


def inbox_ttl_ms(stream: str) -> int:
    """Return when a stream is removed that nobody writes to; 0: never, since those of the ring hold open work."""
    return int(INBOX_TTL_S * 1000) if topics.partition_of(stream) is None else 0


SILENT_CONSUMER_TTL_S = 3_600.0
"""A consumer that holds nothing and was not seen for so long is struck from its group; names are unique per start."""


class BusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Timing of a Bus; the defaults suit production, tests shorten them.

    `block_s` is how long a blocking read waits on the server; it must be shorter than `reply_timeout_s`, after which a
    connection counts as lost. `patience_s` is how long a call goes on reconnecting before it raises UnavailableError.
    `claim_idle_s` is how long a consumer may be silent before its entries are claimed by a living one.
    """

    block_s: float = 1.0
    reply_timeout_s: float = 5.0
    connect_timeout_s: float = 2.0
    patience_s: float = 30.0
    claim_idle_s: float = 15.0
    retry_delay_s: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.block_s < self.reply_timeout_s:
            raise ValueError("block_s must be positive and shorter than reply_timeout_s")

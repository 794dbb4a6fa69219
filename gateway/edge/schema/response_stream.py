"""Options of a streamed response."""

from __future__ import annotations

import msgspec

from gateway.edge.schema.sampling import fail

_LEAST_UNREAD_S = 1.0


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    """Options that only a stream has; deltas are never padded, whatever is asked for.

    `resumable`: the answer is made without its client, who may come back to the stream. `unread_limit_s`: it is
    cancelled when nobody has read it for so long.
    """

    include_obfuscation: bool | None = None
    resumable: bool | None = None
    unread_limit_s: float | None = None

    def check(self, *, background: bool, store: bool) -> None:
        """Raise InvalidRequestError for what does not go together."""
        if self.resumable and not store:
            raise fail("stream_options.resumable", "needs the response to be stored: leave out store: false.")
        limit_s = self.unread_limit_s
        if limit_s is None:
            return
        if not background and not self.resumable:
            raise fail("stream_options.unread_limit_s", "needs background: true or resumable: true; others end unread.")
        if limit_s < _LEAST_UNREAD_S:
            raise fail("stream_options.unread_limit_s", f"must be at least {_LEAST_UNREAD_S:g}, not {limit_s:g}.")

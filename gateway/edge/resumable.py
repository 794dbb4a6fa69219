"""Streams that a client may come back to: their events have ids, and the work goes on for a while without a client.

A client that lost its connection sends the same request again with `Last-Event-ID`, to any edge: the tokens come again
from the replica, the events up to that place are left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from gateway.edge.generation import Generation
from gateway.edge.identity import new_request_id
from gateway.edge.lingering import Lingering
from gateway.edge.places import Place, Shown, cut, pieces
from gateway.edge.reply import ChoiceUpdate
from gateway.edge.streaming import Block
from wire.errors import HeadraceError, NotFoundError
from wire.messages import Request


class Resumable:
    """One such stream. `seen` is the place that the client has come back from."""

    def __init__(self, lingering: Lingering, seen: Place | None = None) -> None:
        self._lingering = lingering
        self._seen = seen

    @staticmethod
    def mark(request: Request) -> Request:
        """Return the request with what an edge needs that goes on with it."""
        reply = {"id": f"chatcmpl-{new_request_id()}", "created": int(request.created_at), "resumable": True}
        return msgspec.structs.replace(request, reply=reply)

    def check(self, request: Request) -> None:
        """Raise NotFoundError if the request is none that this place can be in."""
        assert self._seen is not None
        if not request.reply.get("resumable") or request.sampling.n != len(self._seen.choices):
            raise NotFoundError("No stream has an event of this id.", param="Last-Event-ID")

    async def blocks(self, generation: Generation) -> AsyncGenerator[Block, None]:
        """Yield the events with their ids, from behind the place that was seen."""
        reply, job = generation.reply, generation.job
        place = Place(job.partition, job.request_id, [Shown() for _ in range(generation.request.sampling.n)])
        opening = _named(reply.opening(), place) if self._seen is None else b""
        try:
            async for updates in generation.updates():
                data = opening + b"".join(self._events(generation, update, place) for update in updates)
                opening = b""
                if data:
                    yield Block(data)
            bill = await generation.settle()
        except HeadraceError as error:
            generation.error = error
            await generation.settle("failed")
            yield Block(opening + reply.failure(error), last=True)
        else:
            yield Block(opening + self._closing(reply.closing(bill), place), last=True)

    def _events(self, generation: Generation, update: ChoiceUpdate, place: Place) -> bytes:
        """Make the events of an update one by one, each with the place behind it."""
        events = []
        reply, shown = generation.reply, place.choices[update.choice]
        seen = self._seen.choices[update.choice] if self._seen is not None else Shown()
        for piece in pieces(update):
            if not piece.deltas:
                shown.finished = piece.finish_reason is not None
                data = reply.events([piece])
                events.append(b"" if seen.finished else _named(data, place))
                continue
            before, rest = cut(piece.deltas[0], shown, seen)
            if before is not None:
                reply.events([msgspec.structs.replace(piece, deltas=[before])])
            shown.add(piece.deltas[0])
            if rest is not None:
                events.append(_named(reply.events([msgspec.structs.replace(piece, deltas=[rest])]), place))
        return b"".join(events)

    def _closing(self, data: bytes, place: Place) -> bytes:
        usage, end, done = data.rpartition(b"data: [DONE]")
        if usage:
            place.usage = True
            usage = b"" if self._seen is not None and self._seen.usage else _named(usage, place)
        return usage + end + done

    def leave(self, generation: Generation) -> None:
        """Wait for the client to come back; called when its connection is gone."""
        self._lingering.leave(generation)


def _named(data: bytes, place: Place) -> bytes:
    """Put the id before an event (or before the last of several)."""
    if not data:
        return b""
    before, separator, last = data[:-2].rpartition(b"\n\n")
    return before + separator + b"id: " + str(place).encode() + b"\n" + last + b"\n\n"

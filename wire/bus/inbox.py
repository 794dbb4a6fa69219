"""Follows a stream without a group: an inbox (one reader, what was read is removed) or a fan-out (nothing is)."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import msgspec

from wire import codec
from wire.bus.core import Core
from wire.bus.fields import fields_of
from wire.bus.line import Command
from wire.bus.route import PASSING
from wire.errors import UnavailableError
from wire.messages import AnyMessage, TokenBatch

log = logging.getLogger(__name__)

_COUNT = 256
_REMEMBERED = 4_096
_REMOVE_AT = 16  # a removal for each step's tokens would double what the server has to do for them


class _Seen:
    """The nonces of late: a sender whose reply got lost sends again, the reader drops the repeat."""

    def __init__(self) -> None:
        self._nonces: OrderedDict[bytes, None] = OrderedDict()

    def again(self, nonce: bytes | None) -> bool:
        if not nonce:  # a sender who says that his messages may come twice
            return False
        if nonce in self._nonces:
            return True
        self._nonces[nonce] = None
        if len(self._nonces) > _REMEMBERED:
            self._nonces.popitem(last=False)
        return False


async def follow(bus: Core, stream: str, *, start: str, trim: bool) -> AsyncGenerator[AnyMessage, None]:
    """Yield messages as they arrive, across reconnects; malformed ones are counted and skipped."""
    seen = _Seen()
    last = await newest_id(bus, stream) if start == "$" else start
    read: list[bytes] = []  # and not yet removed
    due = True
    while True:
        entries = await _read(bus, stream, last, read if due else [])
        read = [*([] if due else read), *(entry_id for entry_id, _ in entries)] if trim else []
        due = not entries or len(read) >= _REMOVE_AT
        if not entries and await _began_again(bus, stream, last):
            last = "0"
        for entry_id, fields in entries:
            message = _open(bus, stream, fields, seen)
            due = due or not _may_lie(message)
            if message is not None:
                yield message
            last = entry_id.decode()


def _may_lie(message: AnyMessage | None) -> bool:
    """Tell whether a message may stay for a few more: tokens of answers that go on. What holds texts goes at once."""
    return isinstance(message, TokenBatch) and all(chunk.finish_reason is None for chunk in message.chunks)


async def _read(bus: Core, stream: str, last: str, read: list[bytes]) -> list[Any]:
    """Remove what is due, and in the same write wait for more."""
    block_ms = int(bus.options.block_s * 1000)
    # By name, not by a lowest id: the stream may have been deleted meanwhile and count from an earlier clock.
    removal: list[Command] = [("XDEL", stream, *read)] if read else []
    delay = 0.02
    while True:
        try:
            command = ("XREAD", "COUNT", _COUNT, "BLOCK", block_ms, "STREAMS", stream, last)
            reply = await bus.route.once(stream, *command, blocking=True, before=removal)
        except PASSING as error:
            log.warning("bus lost while reading %s, again in %.2f s: %s", stream, delay, error)
            await anyio.sleep(delay)
            delay = min(delay * 2, 1.0)
            await bus.route.learn_again()
            continue
        return list(reply[0][1]) if reply else []


async def _began_again(bus: Core, stream: str, last: str) -> bool:
    # A stream that was deleted (or whose server changed for one with an earlier clock) counts anew: its entries would
    # stay below what was read last, and unseen for ever.
    try:
        newest = await newest_id(bus, stream)
    except UnavailableError:  # the next look tells
        return False
    return newest != "0" and _order(newest) < _order(last)


def _open(bus: Core, stream: str, fields: list[bytes], seen: _Seen) -> AnyMessage | None:
    values = fields_of(fields)
    try:
        message = codec.decode_message(values[b"m"])
    except (KeyError, msgspec.MsgspecError) as error:
        bus.counts.num_malformed += 1
        log.error("malformed message on %s skipped: %s", stream, error)
        return None
    return None if seen.again(values.get(b"n")) else message


async def newest_id(bus: Core, stream: str) -> str:
    """Return the id of a stream's last message; "0" if there is none."""
    # Asked for once: "$" in a repeated XREAD would skip what came in between.
    newest = await bus.route.call(stream, "XREVRANGE", stream, "+", "-", "COUNT", 1)
    return newest[0][0].decode() if newest else "0"


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)

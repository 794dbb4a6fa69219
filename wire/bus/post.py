"""Messages beside the ring: inboxes with one reader, fan-out streams with many, and the deployment's secrets.

A message may be sent twice when the first reply got lost; it carries a nonce, by which its reader drops the repeat.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Sequence

from wire import codec, topics
from wire.bus.core import Core
from wire.bus.courier import Courier
from wire.bus.inbox import follow, newest_id
from wire.bus.line import Arg
from wire.bus.options import inbox_ttl_ms
from wire.bus.scripts import PUBLISH, SEND
from wire.errors import OverloadedError
from wire.messages import AnyMessage


class Post(Core):
    """Sending and following."""

    async def send(self, stream: str, message: AnyMessage, *, maxlen: int) -> None:
        """Add a message to an inbox, a control stream or a desk's stream.

        Raises OverloadedError when `maxlen` messages wait there unread: nothing is dropped silently.
        """
        await self._send(stream, codec.encode(message), maxlen)

    async def send_many(self, messages: Iterable[tuple[str, AnyMessage]], *, maxlen: int) -> list[str]:
        """Send many messages in one go (one write per server); return the streams that were full.

        To one stream they arrive in the order given.
        """
        letters = [(stream, self._letter(codec.encode(message), stream, maxlen)) for stream, message in messages]
        sent = await self.route.run_many(SEND, letters)
        return [stream for (stream, _), done in zip(letters, sent, strict=True) if not done]

    def courier(self) -> Courier:
        """Return a sender that does not wait for replies; whoever asks for one closes it."""
        return Courier(self.route, self.options)

    async def publish(self, stream: str, message: AnyMessage, *, maxlen: int) -> None:
        """Add a message to a stream that many watch; the oldest is dropped beyond about `maxlen`."""
        command = ("XADD", stream, "MAXLEN", "~", maxlen, "*", "m", codec.encode(message), "n", self._nonce())
        await self.route.call(stream, *command, "t", time.time())

    async def publish_many(self, stream: str, messages: Sequence[AnyMessage], *, maxlen: int) -> None:
        """Publish messages in one trip, all or none of them."""
        words = [word for message in messages for word in (self._nonce(), codec.encode(message))]
        if words:
            await self.route.run(PUBLISH, (stream,), maxlen, time.time(), *words)

    def inbox(self, stream: str, *, start: str = "0") -> AsyncGenerator[AnyMessage, None]:
        """Yield the messages of a stream with one reader; what was read is removed. `start` "$": new ones only."""
        return follow(self, stream, start=start, trim=True)

    def watch(self, stream: str, *, start: str = "0") -> AsyncGenerator[AnyMessage, None]:
        """Yield the messages of a stream that others watch too, from the oldest kept one on (`start` "$": new ones).

        New ones are those that come after the first step; whoever has to say before where that is asks for the `end`.
        """
        return follow(self, stream, start=start, trim=False)

    async def end(self, stream: str) -> str:
        """Return the place behind all messages of a stream until now, as a `start`."""
        return await newest_id(self, stream)

    async def secret(self, name: str) -> bytes:
        """Return the deployment's secret of this name (32 bytes), made at the first call."""
        key = topics.secret(name)
        await self.route.call(key, "SET", key, secrets.token_bytes(32), "NX")
        value: bytes = await self.route.call(key, "GET", key)
        return value

    async def _send(self, stream: str, raw: bytes, maxlen: int) -> None:
        if not await self.route.run(SEND, (stream,), *self._letter(raw, stream, maxlen)):
            raise OverloadedError(f"{stream} is full", retry_after_s=1.0)

    def _letter(self, raw: bytes, stream: str, maxlen: int) -> tuple[Arg, ...]:
        return maxlen, inbox_ttl_ms(stream), self._nonce(), time.time(), raw

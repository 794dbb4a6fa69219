"""The pipe between service and engine: a socket pair of msgpack messages, each behind its length.

The service's end waits in its event loop, the engine's end in the kernel. When one process dies the other reads the end
of the stream at once. The kernel's buffer is the bound: when it is full, the engine waits; the service queues, bounded
by the requests that it took.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from typing import Generic, TypeVar

import anyio
import msgspec

from model_svc.engine_messages import ToEngine, ToService

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
_MAX_UNFETCHED = 256

M = TypeVar("M")


class Frames(Generic[M]):
    """Cuts a byte stream into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Take bytes as they come; returns the messages that are whole by now."""
        buffer = self._buffer
        buffer += data
        messages: list[M] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            messages.append(self._decoder.decode(bytes(buffer[at + _LENGTH.size : end])))
            at = end
        del buffer[:at]
        return messages


def frame(encoder: msgspec.msgpack.Encoder, message: object) -> bytes:
    """Return a message as bytes that `Frames` cuts out again."""
    body = encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class ServiceEnd(asyncio.Protocol):
    """The service's end; any number of senders, one receiver. It joins the event loop when that first receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        # Writing goes its own way: a transport that cannot write any more would throw away what is still to be read.
        self._out = sock.dup()
        self._transport: asyncio.Transport | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._frames: Frames[ToService] = Frames(msgspec.msgpack.Decoder(ToService))
        self._unsent = bytearray()
        self._sending = anyio.Lock(fast_acquire=True)  # else each message waits for a turn of the loop
        self._messages: list[ToService] = []
        self._news = asyncio.Event()
        self._ended = False

    async def send(self, message: ToEngine) -> None:
        """Send a message; messages arrive in the order of the calls. Raises BrokenPipeError when the engine is gone."""
        self._unsent += frame(self._encoder, message)
        async with self._sending:
            while self._unsent:
                try:
                    sent = self._out.send(self._unsent[:_READ_BYTES])
                except BlockingIOError:
                    await anyio.wait_writable(self._out)
                else:
                    del self._unsent[:sent]

    async def receive(self) -> list[ToService]:
        """Return the next messages, at least one; an empty list at the end of the stream."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._socket)
        while not self._messages and not self._ended:
            self._news.clear()
            await self._news.wait()
        messages, self._messages = self._messages, []
        if not self._transport.is_reading() and not self._ended:
            self._transport.resume_reading()
        return messages

    def close(self) -> None:
        """Close the end; the engine reads the end of the stream and stops."""
        (self._transport or self._socket).close()
        self._out.close()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the loop; when nobody fetches the messages, the engine waits."""
        self._messages += self._frames.feed(data)
        if len(self._messages) >= _MAX_UNFETCHED and self._transport is not None:
            self._transport.pause_reading()
        if self._messages:
            self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end."""
        del exc
        self._ended = True
        self._news.set()


class EngineEnd:
    """The engine's end, without an event loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._frames: Frames[ToEngine] = Frames(msgspec.msgpack.Decoder(ToEngine))

    def send(self, *messages: ToService) -> None:
        """Send messages in one write, waiting while the service is behind. Raises OSError when it is gone."""
        self._socket.sendall(b"".join([frame(self._encoder, message) for message in messages]))

    def has_news(self, within_s: float) -> bool:
        """Wait for a message, or the end, at most so long; tells whether `receive` finds one."""
        return bool(select.select([self._socket], [], [], within_s)[0])

    def look_for_news(self, for_s: float) -> bool:
        """Do the same without sleeping."""
        until = time.monotonic() + for_s
        while not self.has_news(0):
            if time.monotonic() >= until:
                return False
        return True

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Return what has arrived; with `wait` at least one message. Raises EOFError when the service is gone."""
        while True:
            if not wait and not self.has_news(0):
                return []
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise EOFError
            messages = self._frames.feed(data)
            if messages or not wait:
                return messages

"""One end of a connection between replicas: headers in msgpack behind their length, and raw bytes of blocks.

Bytes go between the socket and memory that is shared with the engine; nothing in between holds a copy of them.
"""

from __future__ import annotations

import hmac
import socket
import struct
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from model_svc.disagg.errors import TransferError
from model_svc.engine.kv_layout import KvLayout

MAX_HEADER_BYTES = 2 << 20  # names of 130,000 blocks
_LENGTH = struct.Struct("<I")
_AT_ONCE = 1 << 18  # bytes that one call may move: others have the event loop after it

H = TypeVar("H", bound=msgspec.Struct)


class Greeting(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Server, first: what the other side must sign."""

    nonce: bytes


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Client: the blocks that it wants, names concatenated, and what it takes blocks to be."""

    nonce: bytes
    layout: KvLayout
    names: bytes
    signature: bytes = b""


class Part(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Server: so many blocks follow. `last`: no others come. The first part carries the signature, or a refusal."""

    num_blocks: int
    last: bool = False
    refused: str = ""
    signature: bytes = b""


def signature(secret: bytes, who: str, *said: bytes) -> bytes:
    """Return what only a replica of this deployment can say: a MAC over what both sides have said."""
    data = b"".join(len(raw).to_bytes(4, "little") + raw for raw in (who.encode(), *said))
    return hmac.digest(secret, data, "sha256")


def sign_ask(secret: bytes, greeting: Greeting, ask: Ask) -> bytes:
    """Return the signature of a client's request."""
    return signature(secret, "client", greeting.nonce, ask.nonce, msgspec.msgpack.encode(ask.layout), ask.names)


class Peer:
    """A connected socket. Raises OSError where the connection breaks, EOFError where it ends."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock

    async def send(self, header: msgspec.Struct, body: memoryview | None = None) -> None:
        """Send a header and the bytes that follow it."""
        raw = msgspec.msgpack.encode(header)
        await self._send(memoryview(_LENGTH.pack(len(raw)) + raw))
        if body is not None:
            await self._send(body)

    async def receive(self, kind: type[H]) -> H:
        """Return the next header. Raises TransferError for anything else than one of this kind."""
        (size,) = _LENGTH.unpack(await self._receive(_LENGTH.size))
        if size > MAX_HEADER_BYTES:
            raise TransferError(f"a header of {size} bytes; at most {MAX_HEADER_BYTES} are allowed")
        try:
            return msgspec.msgpack.decode(await self._receive(size), type=kind)
        except msgspec.MsgspecError as error:
            raise TransferError(f"no {kind.__name__}: {error}") from error

    async def receive_into(self, view: memoryview) -> None:
        """Fill memory with the bytes that come next."""
        at = 0
        while at < len(view):
            try:
                num_bytes = self._socket.recv_into(view[at : at + _AT_ONCE])
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not num_bytes:
                raise EOFError
            at += num_bytes
            await anyio.lowlevel.checkpoint()

    async def _receive(self, size: int) -> bytes:
        """Return so many bytes; memory is taken as they come, whatever was announced."""
        raw = bytearray()
        while len(raw) < size:
            try:
                data = self._socket.recv(min(size - len(raw), _AT_ONCE))
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not data:
                raise EOFError
            raw += data
        return bytes(raw)

    async def _send(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            try:
                at += self._socket.send(data[at : at + _AT_ONCE])
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
                continue
            await anyio.lowlevel.checkpoint()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.close()

"""Bytes of messages and record fields: msgpack, one encoder for all, one decoder per type."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from wire.messages import AnyMessage

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def encode(value: Any) -> bytes:
    """Encode a message or a record field."""
    return _encoder.encode(value)


def decode_message(raw: bytes) -> AnyMessage:
    """Decode any message by its tag.

    Raises msgspec.DecodeError or msgspec.ValidationError for bytes that are no message of ours.
    """
    return _messages.decode(raw)


def decode(raw: bytes, cls: type[T]) -> T:
    """Decode a record field of a known type."""
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.msgpack.Decoder(cls)
    value: T = decoder.decode(raw)
    return value

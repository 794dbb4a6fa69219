"""The root of what travels on a stream, and the packed form of token ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of everything that travels on a stream; the tag is the class name."""


ID_BYTES = 4
"""What a packed token id takes."""


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Pack token ids as little-endian int32."""
    return array("i", token_ids).tobytes()


def unpack_ids(raw: bytes) -> list[int]:
    """Undo `pack_ids`."""
    ids = array("i")
    ids.frombytes(raw)
    return ids.tolist()

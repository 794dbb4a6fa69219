"""Request bodies that come compressed (`Content-Encoding`): gzip and deflate are read, others are 415.

What comes out is held to the limit of a body too, so that no short one becomes a huge one.
"""

from __future__ import annotations

import zlib

from wire.errors import BodyTooLargeError, InvalidRequestError, UnsupportedEncodingError
from wire.threads import in_thread

ACCEPTED = "gzip, deflate"
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def check_encoding(encoding: str) -> None:
    """Refuse an encoding that is not read here, before the body is. Raises UnsupportedEncodingError."""
    if _named(encoding) not in ("", "identity", *_WINDOWS):
        raise UnsupportedEncodingError(f"Content-Encoding {encoding[:40]!r} is not read here; {ACCEPTED} are.")


async def expanded(raw: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a body as it was before it was compressed. Raises BodyTooLargeError or InvalidRequestError."""
    name = _named(encoding)
    if name not in _WINDOWS or not raw:
        return raw
    return await in_thread(_expand, raw, name, max_bytes)


def _named(encoding: str) -> str:
    return encoding.strip().lower()


def _expand(raw: bytes, name: str, max_bytes: int) -> bytes:
    found, rest = b"", raw
    while rest:  # gzip may come in several members
        member = zlib.decompressobj(_WINDOWS[name])
        try:
            found += member.decompress(rest, max_bytes + 1 - len(found))
        except zlib.error:
            raise InvalidRequestError(f"The request body is not valid {name}.") from None
        if len(found) > max_bytes:
            raise BodyTooLargeError(f"The request body is larger than {max_bytes} bytes.")
        if not member.eof or (member.unused_data and name == "deflate"):
            raise InvalidRequestError(f"The request body is not valid {name}.")
        rest = member.unused_data
    return found

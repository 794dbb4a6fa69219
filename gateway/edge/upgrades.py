"""Requests that offer to go on in another protocol (HTTP/2 in clear, as Java's client does, or a web socket).

We decline by answering in HTTP/1.1. But the parser takes what follows such a head for the other protocol's, and the
request would lose its body: so it reads the request once more, without the offer.
"""

from __future__ import annotations

from collections.abc import Iterable

_OFFER = (b"upgrade", b"http2-settings")


def without_offer(method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a request of HTTP/1.1 without the offer; names of headers are in lower case."""
    lines = [method + b" " + url + b" HTTP/1.1"]
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(word for word in map(bytes.strip, value.split(b",")) if word.lower() not in _OFFER)
        if name not in _OFFER and not (name == b"connection" and not value):
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"

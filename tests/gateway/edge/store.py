"""What lies in the store, for tests of deletions: every value of every key, as it is."""

from __future__ import annotations

from typing import Any

import anyio

from tests.ring import Ring

_READ = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1),
    b"stream": ("XRANGE", "-", "+"),
}


async def keys_with(ring: Ring, *words: bytes) -> list[str]:
    """Return the keys under which, or in whose names, one of the words lies."""
    found = []
    for raw in await ring.bus.route.call("", "KEYS", "*"):
        key = raw.decode()
        kind = await ring.bus.route.call(key, "TYPE", key)
        if kind == b"none":  # it has just expired
            continue
        command, *rest = _READ[kind]
        value = b"\0".join(_flat(await ring.bus.route.call(key, command, key, *rest)))
        if any(word in raw or word in value for word in words):
            found.append(key)
    return found


async def until_nothing_has(ring: Ring, *words: bytes) -> None:
    """Wait until no key holds one of the words any more: what was on its way to a desk is read, and not kept."""
    found: list[str] = []
    with anyio.move_on_after(60):
        while found := await keys_with(ring, *words):
            await anyio.sleep(0.01)
    assert not found, found


def _flat(value: Any) -> list[bytes]:
    if isinstance(value, list):
        return [part for item in value for part in _flat(item)]
    return [value] if isinstance(value, bytes) else []

"""Which adapters of a model are wanted at run time: a record in Redis that replicas and edges follow.

An adapter is *asked for* first: replicas load it and say in their heartbeats what came of that. Then it is *served*:
the digest of its files is known, edges offer it, and replicas that come later load it, too. A change is told on a
stream beside the record, in one step with it; whoever follows reads the whole record again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from wire import codec
from wire.adapters import name_with_digest
from wire.bus import Bus
from wire.bus.script import Script
from wire.messages import AdaptersChanged
from wire.topics import adapter_news, adapters

_ASKED, _SERVED = "asked:", "served:"

ASK = Script("""
-- KEYS record, news. ARGV name, entry, message, 1 to replace what is served. 0 if that may not be. May run twice.
if ARGV[4] == '0' and redis.call('HEXISTS', KEYS[1], 'served:' .. ARGV[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'asked:' .. ARGV[1], ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 100, '*', 'm', ARGV[3])
return 1
""")

SERVE = Script("""
-- KEYS record, news. ARGV name, entry, message, entry as it was asked for. 0 if another was meanwhile. May run twice.
if redis.call('HGET', KEYS[1], 'asked:' .. ARGV[1]) ~= ARGV[4] then
  return redis.call('HGET', KEYS[1], 'served:' .. ARGV[1]) == ARGV[2] and 1 or 0
end
redis.call('HDEL', KEYS[1], 'asked:' .. ARGV[1])
redis.call('HSET', KEYS[1], 'served:' .. ARGV[1], ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 100, '*', 'm', ARGV[3])
return 1
""")

TAKE_BACK = Script("""
-- KEYS record, news. ARGV name, entry, message. May run twice.
if redis.call('HGET', KEYS[1], 'asked:' .. ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], 'asked:' .. ARGV[1])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 100, '*', 'm', ARGV[3])
return 1
""")

REMOVE = Script("""
-- KEYS record, news. ARGV name, message. May run twice.
redis.call('HDEL', KEYS[1], 'asked:' .. ARGV[1], 'served:' .. ARGV[1])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 100, '*', 'm', ARGV[2])
return 1
""")


class WantedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter: its name, where it lies below `adapter_dir`, and (once it is served) the digest of its files.

    `revision` tells one wish from the next for the same name; `at` is Unix time.
    """

    name: str
    path: str
    revision: str
    at: int = 0
    digest: str = ""

    @property
    def id(self) -> str:
        """What it is to desks and in names of blocks, once it is served."""
        return name_with_digest(self.name, self.digest)


class WantedAdapters(msgspec.Struct, frozen=True):
    """A model's record: by name, what is served and what is asked for."""

    served: dict[str, WantedAdapter]
    asked: dict[str, WantedAdapter]

    @property
    def by_revision(self) -> dict[str, WantedAdapter]:
        """All of them: what a replica is to have."""
        return {one.revision: one for one in (*self.served.values(), *self.asked.values())}


class AdapterRecord:
    """Access to the record of one model."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus = bus
        self._keys = (adapters(model), adapter_news(model))
        self._message = codec.encode(AdaptersChanged(model=model))

    async def read(self) -> WantedAdapters:
        """Return the record."""
        found = await self._bus.route.call(self._keys[0], "HGETALL", self._keys[0])
        entries = {name.decode(): raw for name, raw in zip(found[::2], found[1::2], strict=True)}
        return WantedAdapters(_of(entries, _SERVED), _of(entries, _ASKED))

    async def follow(self) -> AsyncIterator[WantedAdapters]:
        """Yield the record as it is, and again whenever it may have changed."""
        start = await self._bus.end(self._keys[1])
        yield await self.read()
        async for _ in self._bus.watch(self._keys[1], start=start):
            yield await self.read()

    async def ask(self, wanted: WantedAdapter, *, replace: bool) -> bool:
        """Ask for an adapter; False if one of the name is served and this is not to `replace` it."""
        return await self._run(ASK, wanted.name, codec.encode(wanted), self._message, int(replace))

    async def serve(self, wanted: WantedAdapter, digest: str) -> bool:
        """Serve what was asked for; False if it was removed, or another asked for, meanwhile."""
        served = msgspec.structs.replace(wanted, digest=digest)
        return await self._run(SERVE, wanted.name, codec.encode(served), self._message, codec.encode(wanted))

    async def take_back(self, wanted: WantedAdapter) -> None:
        """Ask for it no longer."""
        await self._run(TAKE_BACK, wanted.name, codec.encode(wanted), self._message)

    async def remove(self, name: str) -> None:
        """Want no adapter of this name."""
        await self._run(REMOVE, name, self._message)

    async def _run(self, script: Script, *args: str | bytes | int) -> bool:
        return bool(await self._bus.route.run(script, self._keys, *args))


def _of(entries: dict[str, bytes], kind: str) -> dict[str, WantedAdapter]:
    found = (codec.decode(raw, WantedAdapter) for field, raw in sorted(entries.items()) if field.startswith(kind))
    return {one.name: one for one in found}

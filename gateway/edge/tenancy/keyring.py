"""The keys in force: the file as it last made sense. A change counts once it is at rest; open requests go on."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio

from gateway.at_rest import AtRest, stamp_of
from gateway.edge.tenancy.key_file import ApiKey, KeyFileError, hash_of, load
from wire.threads import in_thread

logger = logging.getLogger(__name__)


class Keyring:
    """Looks keys up, and reads the file again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at_rest = AtRest()
        self._stamp = stamp_of(path)
        self._keys = load(path)
        self._by_id = {key.id: key for key in self._keys.values()}

    def find(self, key: str) -> ApiKey | None:
        """Return what stands in the file for a key. Digests are compared, so the time tells nothing of the key."""
        return self._keys.get(hash_of(key))

    def by_id(self, key_id: str) -> ApiKey | None:
        """Return a key by its id."""
        return self._by_id.get(key_id)

    async def watch(self, interval_s: float) -> None:
        """Follow the file until cancelled."""
        while True:
            await anyio.sleep(interval_s)
            await in_thread(self.refresh)

    def refresh(self) -> None:
        """Read the file again if it has changed; one that makes no sense is logged, and the keys stay as they were."""
        stamp = stamp_of(self._path)
        if not self._at_rest("", stamp) or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = load(self._path)
        except KeyFileError as error:
            logger.error("the keys stay as they were: %s", error)
            return
        self._keys, self._by_id = keys, {key.id: key for key in keys.values()}
        logger.info("%s: %d keys", self._path, len(keys))

"""The keys in force: the file as it was when it last made sense. A change counts at once, open requests go on."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.edge.tenancy.key_file import ApiKey, KeyFileError, hash_of, load

logger = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


class Keyring:
    """Looks keys up, and reads the file again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
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
            await anyio.to_thread.run_sync(self.refresh)

    def refresh(self) -> None:
        """Read the file again if it has changed; one that makes no sense is logged, and the keys stay as they were."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = load(self._path)
        except KeyFileError as error:
            logger.error("the keys stay as they were: %s", error)
            return
        self._keys, self._by_id = keys, {key.id: key for key in keys.values()}
        logger.info("%s: %d keys", self._path, len(keys))


def _stamp(path: Path) -> _Stamp:
    """Tell one state of a file from another; a file that was replaced has another inode."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)

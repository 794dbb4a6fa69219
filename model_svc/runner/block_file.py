"""Where the second tier's bytes lie on a disk: a file of blocks by name, which outlives the replica.

A head says whose states these are; a file of another model, layout or size begins anew. Then comes a table with a line
for each place, its block's name and a checksum over name and bytes, then the blocks. A line is cleared before its block
is written and set behind it. What a machine that lost power has left is told by the checksum, when a block is first
wanted. Nothing is mapped: a disk that fails raises an error here instead of killing the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from model_svc.engine.plan import BlockCopy
from model_svc.runner.precision import RunnerConfigError

_log = logging.getLogger(__name__)

_PAGE = 4096
_LINE = struct.Struct("<16sIxxxx")  # name, checksum; no name: nothing is there
_EMPTY = bytes(_LINE.size)
_NO_NAME = bytes(16)
_MOST_FILES = 64  # replicas of one state directory


class BlockFile:
    """An open file of blocks that no other process has."""

    def __init__(self, folder: Path, num_places: int, block_bytes: int, whose: str) -> None:
        """Open the first file of a folder that is free; `whose` are the states.

        Raises RunnerConfigError if the disk has no room for it.
        """
        self.num_places = num_places
        self._block_bytes = block_bytes
        self._stride = -(-block_bytes // _PAGE) * _PAGE
        self._begin = _PAGE + -(-num_places * _LINE.size // _PAGE) * _PAGE
        self._fd = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = _open_unused(folder)
            self._claim(whose)
        except OSError as error:
            self.close()
            room = self._begin + num_places * self._stride
            raise RunnerConfigError(
                f"kv_disk_gib: {folder} has no room for {room / (1 << 30):.1f} GiB: {error}"
            ) from error

    def names(self) -> Iterable[tuple[bytes, int]]:
        """Return the names that the table has, and their places."""
        table = os.pread(self._fd, self.num_places * _LINE.size, _PAGE)
        for place, (name, _) in enumerate(_LINE.iter_unpack(table[: len(table) - len(table) % _LINE.size])):
            if name != _NO_NAME:
                yield name, place

    def is_sound(self, place: int) -> bool:
        """Read a block; tells whether it is what was saved under its name."""
        try:
            line = os.pread(self._fd, _LINE.size, self._line(place))
            data = os.pread(self._fd, self._block_bytes, self._block(place))
        except OSError as error:
            _log.warning("a KV block cannot be read: %s", error)
            return False
        if len(line) < _LINE.size or len(data) < self._block_bytes:
            return False
        name, checksum = _LINE.unpack(line)
        return bool(name != _NO_NAME and zlib.crc32(data, zlib.crc32(name)) == checksum)

    def put(self, copies: Sequence[BlockCopy], rows: Tensor) -> None:
        """Keep blocks."""
        for copy, row in zip(copies, rows.numpy(), strict=True):
            self._write(_EMPTY, self._line(copy.place))
            self._write(row, self._block(copy.place))
            checksum = zlib.crc32(row, zlib.crc32(copy.name))
            self._write(_LINE.pack(copy.name, checksum), self._line(copy.place))

    def get(self, copies: Sequence[BlockCopy], rows: Tensor) -> None:
        """Bring blocks back."""
        for copy, row in zip(copies, rows.numpy(), strict=True):
            if os.preadv(self._fd, [row], self._block(copy.place)) < self._block_bytes:
                raise OSError("the file of KV blocks was cut off")

    def close(self) -> None:
        """Let others have the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _claim(self, whose: str) -> None:
        """Go on with a file of the same form, or begin it anew. All its room is taken at once, not within steps."""
        form = f"headrace KV blocks 1 {self.num_places} {self._block_bytes} {whose}"
        head = hashlib.blake2b(form.encode(), digest_size=32).digest()
        size = self._begin + self.num_places * self._stride
        if os.pread(self._fd, len(head), 0) == head and os.fstat(self._fd).st_size == size:
            return
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)
        self._write(head, 0)

    def _line(self, place: int) -> int:
        return _PAGE + place * _LINE.size

    def _block(self, place: int) -> int:
        return self._begin + place * self._stride

    def _write(self, data: object, at: int) -> None:
        if os.pwrite(self._fd, data, at) != memoryview(data).nbytes:  # type: ignore[arg-type]
            raise OSError("the file of KV blocks was not written whole")


def places_in(num_bytes: int, block_bytes: int) -> int:
    """Return how many blocks a file of so many bytes holds."""
    stride = -(-block_bytes // _PAGE) * _PAGE
    return max(0, (num_bytes - 2 * _PAGE) // (stride + _LINE.size))


def _open_unused(folder: Path) -> int:
    """Return the descriptor of a file that nobody else has open."""
    for number in range(_MOST_FILES):
        descriptor = os.open(folder / f"blocks-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        return descriptor
    raise OSError(f"{_MOST_FILES} replicas use it")

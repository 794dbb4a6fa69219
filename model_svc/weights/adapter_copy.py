"""A private copy of an adapter's files: what is read is what the digest is of, whoever writes there meanwhile.

A mapped file that somebody cuts short would end the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.errors import CheckpointError
from wire.adapters import CONFIG, WEIGHTS

_PICKLED = "adapter_model.bin"  # never read; without the other file its owner is told so
_PIECE = 1 << 20
_DIGEST_BYTES = 8
_MAX_CONFIG = 1 << 20


@contextmanager
def copied(name: str, directory: Path, max_bytes: int) -> Iterator[tuple[AdapterCheckpoint, str]]:
    """Open an adapter as it is now; yields it and the digest of its files, in hex.

    Raises CheckpointError that names the file and the fault, as they are in `directory`.
    """
    if not directory.is_dir():
        raise CheckpointError(directory.name, "is no directory of an adapter")
    with TemporaryDirectory(prefix="headrace-adapter-") as folder:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for file, most in ((CONFIG, _MAX_CONFIG), (WEIGHTS, max_bytes)):
            if (directory / file).is_file():  # else whoever opens the copy says what is wrong
                _copy(directory / file, Path(folder) / file, most, digest)
        if (directory / _PICKLED).exists():
            (Path(folder) / _PICKLED).touch()
        try:
            yield AdapterCheckpoint(name, Path(folder)), digest.hexdigest()
        except CheckpointError as error:
            raise CheckpointError(Path(error.path).name, error.fault) from None


def _copy(source: Path, to: Path, most: int, digest: hashlib.blake2b) -> None:
    try:
        with source.open("rb") as reading, to.open("wb") as writing:
            digest.update(f"{to.name}\0".encode())
            while piece := reading.read(_PIECE):
                digest.update(piece)
                if writing.write(piece) and writing.tell() > most:
                    raise CheckpointError(to.name, f"is larger than {most} bytes, more than any adapter here needs")
    except OSError as error:
        raise CheckpointError(to.name, f"cannot be read: {error.strerror}") from None

"""Tells the weights of a model directory, and its adapters', from others of the same form.

KV states of one are none of the other.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_SUFFIXES = (".safetensors", ".gguf", ".json")
_WHOLE = 1 << 20  # configurations and indexes are read to their end
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of a weight file, evenly spread: a fine-tune changes all of it


def weights_digest(*directories: Path) -> str:
    """Return a digest over names, sizes and samples of the files of a model and its adapters."""
    digest = hashlib.blake2b(digest_size=16)
    for file in (file for directory in directories for file in _files(directory)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            if size <= _WHOLE:
                digest.update(opened.read())
                continue
            for number in range(_NUM_SAMPLES):
                opened.seek((size - _SAMPLE_BYTES) * number // (_NUM_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _files(directory: Path) -> list[Path]:
    return sorted(found for found in directory.iterdir() if found.suffix in _SUFFIXES and found.is_file())

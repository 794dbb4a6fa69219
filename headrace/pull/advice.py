"""How a model of the catalogue is best sampled, written where requests look for it: its generation_config.json.

Without the makers' advice a model is sampled at temperature 1, at which a small one babbles; not every GGUF file
carries it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path

from headrace.catalogue import CATALOGUE, CatalogueEntry

_FILE = "generation_config.json"


def refresh_advice(directory: Path) -> None:
    """Add the advice to a directory whose weights are the catalogue's, however they came there and under any name.

    What is said there already is kept, as somebody's own choice. A directory that cannot be written serves as it is.
    """
    with contextlib.suppress(OSError, ValueError, TypeError):
        path = directory / _FILE
        said = json.loads(path.read_text(encoding="utf-8"))
        for entry in CATALOGUE.values():
            advised = {**entry.sampling, **said}
            if advised != said and any(_is_of(entry, weights) for weights in directory.glob("*.gguf")):
                draft = directory / f".{_FILE}"  # renamed into place: a desk may be reading the file
                draft.write_text(json.dumps(advised, indent=2), encoding="utf-8")
                shutil.copymode(path, draft)
                draft.replace(path)
                return


def _is_of(entry: CatalogueEntry, weights: Path) -> bool:
    """Tell whether a file is the entry's member; only one of its size is read."""
    if weights.stat().st_size != entry.member_bytes:
        return False
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.member_sha256

"""How a model of the catalogue is best sampled, written where requests look for it: its generation_config.json.

Without the makers' advice a model is sampled at temperature 1, at which a small one babbles; not every GGUF file
carries it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from headrace.catalogue import CATALOGUE, CatalogueEntry
from headrace.pull.model_directory import WEIGHTS

_FILE = "generation_config.json"


def write_advice(entry: CatalogueEntry, directory: Path) -> None:
    """Add what the entry advises and the file does not say: what stands there is kept, as somebody's own choice.

    Raises OSError, ValueError, TypeError for a file that cannot be read as a JSON object or written.
    """
    path = directory / _FILE
    said = json.loads(path.read_text(encoding="utf-8"))
    advised = {**entry.sampling, **said}
    if advised == said:
        return
    draft = directory / f".{_FILE}"  # renamed into place: a desk may be reading the file
    draft.write_text(json.dumps(advised, indent=2), encoding="utf-8")
    shutil.copymode(path, draft)
    draft.replace(path)


def refresh_advice(name: str, directory: Path) -> None:
    """Add the advice to a directory pulled by an older version; one that cannot be written serves as it is."""
    entry = CATALOGUE.get(name)
    with contextlib.suppress(OSError, ValueError, TypeError):
        # Another model may have been given the name.
        if entry is not None and (directory / WEIGHTS).stat().st_size == entry.member_bytes:
            write_advice(entry, directory)

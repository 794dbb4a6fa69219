"""Where a deployment's LoRA adapters are, and of which models: what the setting `adapters` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # files of its directory, as PEFT calls them


def name_with_digest(name: str, digest: str) -> str:
    """Return what an adapter that came at run time is to desks and in names of blocks: another content is another.

    Nobody can ask for it by this: no name of an adapter holds an @.
    """
    return f"{name}@{digest}"


class AdapterPlace(msgspec.Struct, frozen=True):
    """An adapter: the name that requests ask for, its base model's, its directory."""

    name: str
    model: str
    path: Path


def places(entries: Sequence[str], models: Sequence[str]) -> tuple[AdapterPlace, ...]:
    """Read entries `NAME=DIR` (of the first model) and `NAME@MODEL=DIR`. Raises ValueError that says what is wrong."""
    found: dict[str, AdapterPlace] = {}
    for entry in entries:
        said, _, directory = entry.partition("=")
        name, at, model = said.partition("@")
        if not name or not directory or (at and not model):
            raise ValueError(f"must read NAME=DIR or NAME@MODEL=DIR, not {entry!r}")
        if name in found or name in models:
            raise ValueError(f"{name!r} is the name of another {'adapter' if name in found else 'model'}")
        if at and model not in models:
            raise ValueError(f"{entry!r} is of {model!r}, which is none of models ({', '.join(models)})")
        found[name] = AdapterPlace(name, model or models[0], Path(directory).expanduser().absolute())
    return tuple(found.values())

"""Where the adapter lies that an operator names: below the directory that the settings allow, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from wire.adapters import CONFIG, WEIGHTS


def place_below(folder: Path, path: str) -> Path:
    """Return the directory that `path` names, as it is or seen from `folder`.

    Raises ValueError, which names the path only as it was given, for one that leads out of there by dots or links.
    """
    try:
        root = folder.resolve()
        place = (root / path).resolve()
        files = [(place / name).resolve() for name in (CONFIG, WEIGHTS)]
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long, a zero byte
        raise ValueError(f"{path[:200]!r} is no path of a directory") from None
    if place == root or not all(each.is_relative_to(root) for each in (place, *files)):
        raise ValueError(f"{path[:200]!r} must be a directory below adapter_dir")
    return place

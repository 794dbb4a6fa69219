"""How much memory this process may still take: the machine's, or what its container is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

# Of cgroups, version 2 and 1: limit, usage, and what `memory.stat` calls pages that the kernel gives back when asked.
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_bytes(root: Path = Path("/")) -> int:
    """Return what is free, to the machine and to every control group that this process is in."""
    free: int = psutil.virtual_memory().available
    return min([free, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[int]:
    for version, folder in _groups(root):
        names = _FILES[version]
        limit, usage = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and usage is not None:
            yield max(0, limit - usage + _reclaimable(folder / "memory.stat", names[2]))


def _groups(root: Path) -> Iterator[tuple[int, Path]]:
    """Name the groups of this process and all above them, as they are mounted here."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        inside = PurePosixPath(path.lstrip("/"))
        # A container sees its own group as the root of the mount, whatever its path says.
        yield from ((1 if controllers else 2, mounted / part) for part in (inside, *inside.parents))


def _number(path: Path) -> int | None:
    """Return what a file holds; None for `max`, or where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(path: Path, name: str) -> int:
    try:
        fields = dict(line.split() for line in path.read_text().splitlines())
        return int(fields.get(name, 0))
    except (OSError, ValueError):
        return 0

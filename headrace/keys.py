"""`headrace keys`: makes API keys and shows what stands in their file. A key itself is shown once and kept nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from rich.console import Console

from gateway.edge.tenancy.key_file import ApiKey, KeyFileError, as_toml, hash_of, load, new_key
from headrace import listing


def add(path: Path, key: ApiKey, console: Console) -> str:
    """Add a key of these properties to a file, made if it is not there; returns the key itself. Raises KeyFileError."""
    path = path.expanduser()
    known = load(path) if path.exists() else {}
    if key.id in {other.id for other in known.values()}:
        raise KeyFileError(f"{path}: there is a key {key.id!r} already")
    secret = new_key()
    made = msgspec.structs.replace(key, hash=hash_of(secret))
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        _replace(path, f"{before.rstrip()}\n\n{as_toml(made)}".lstrip())
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error
    said = f"Added {made.id} of {made.tenant} to {path}. This is the key; it is shown only now:"
    console.print(said, markup=False, highlight=False)
    return secret


def show(path: Path, console: Console) -> None:
    """Print the keys of a file. Raises KeyFileError."""
    names = ("id", "tenant", "requests/min", "tokens/min", "at a time", "priority", "models", "state")
    rows = []
    for key in load(path.expanduser()).values():
        limits = (key.requests_per_minute, key.tokens_per_minute, key.max_concurrent)
        texts = [str(limit) if limit else "-" for limit in limits]
        state = "disabled" if key.disabled else "operator" if key.operator else "in force"
        rows.append([key.id, key.tenant, *texts, str(key.priority), ", ".join(key.models) or "all", state])
    listing.show(console, names, rows)


def _replace(path: Path, text: str) -> None:
    """Write the whole file at once: an edge that looks at it now sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)

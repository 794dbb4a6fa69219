"""The file of API keys. It holds digests, so whoever reads it can use none of the keys.

    [[key]]
    id = "team-a-1"                # stands in logs and in the ledger
    tenant = "team-a"              # owns conversations, cached blocks and bills
    hash = "sha256:..."            # of the key; `headrace keys add` makes both
    requests_per_minute = 600      # 0, the default: no limit; so for the next two
    tokens_per_minute = 200000
    max_concurrent = 32
    priority = 0                   # of its requests; lower goes first
    models = ["smollm2-135m"]      # none named: all
    disabled = false
    operator = false               # may load and unload adapters

Keys are 256 random bits, so a plain digest cannot be turned back, however fast it is to compute.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from pathlib import Path

import msgspec

from wire.errors import StartError

PREFIX = "hr-"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_ID = re.compile(r"[\w.-]{1,64}")


class KeyFileError(StartError):
    """The file of keys cannot be read or is malformed; the message names the key."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key and what it may. Limits of 0 are none."""

    id: str
    tenant: str
    hash: str
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0
    priority: int = 0
    models: tuple[str, ...] = ()
    disabled: bool = False
    operator: bool = False

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError("`id` must have 1 to 64 letters, digits, underscores, dashes and dots")
        if not self.tenant:
            raise ValueError("`tenant` is empty")
        if not _HASH.fullmatch(self.hash):
            raise ValueError("`hash` must be `sha256:` and 64 hex digits")
        for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is negative; 0 is no limit")


def hash_of(key: str) -> str:
    """Return the digest under which a key stands in the file."""
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def new_key() -> str:
    """Return a fresh key."""
    return PREFIX + secrets.token_urlsafe(32)


def parse(source: str) -> dict[str, ApiKey]:
    """Return the keys by their hash. Raises KeyFileError."""
    try:
        data = tomllib.loads(source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise KeyFileError(f"not TOML: {error}") from None
    tables = data.pop("key", [])
    if data or not isinstance(tables, list):
        raise KeyFileError(f"unknown entry {next(iter(data), 'key')!r}; the file holds [[key]] tables only")
    keys: dict[str, ApiKey] = {}
    ids: set[str] = set()
    for number, table in enumerate(tables, start=1):
        name = repr(table["id"]) if isinstance(table, dict) and "id" in table else f"number {number}"
        try:
            key = msgspec.convert(table, ApiKey)
        except msgspec.ValidationError as error:
            raise KeyFileError(f"key {name}: {error}") from None
        if key.id in ids or key.hash in keys:
            raise KeyFileError(f"key {name}: the id or the hash is there twice")
        ids.add(key.id)
        keys[key.hash] = key
    return keys


def load(path: Path) -> dict[str, ApiKey]:
    """Read a file of keys. Raises KeyFileError that names the file and the key."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path}: {error}") from error
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None


def as_toml(key: ApiKey) -> str:
    """Return a key's table as it stands in the file; what is as usual is left out."""
    lines = ["[[key]]"]
    for name, default in zip(ApiKey.__struct_fields__, ("", "", "", *ApiKey.__struct_defaults__), strict=True):
        value = getattr(key, name)
        if value != default:
            lines.append(f"{name} = {msgspec.json.encode(value).decode()}")
    return "\n".join(lines) + "\n"

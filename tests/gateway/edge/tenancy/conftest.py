"""A ring whose edge asks for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.edge.tenancy.key_file import ApiKey, as_toml, hash_of
from tests.ring import MakeRing, Ring, make_ring, tiny_model

__all__ = ["make_ring", "tiny_model"]


class KeyFile:
    """A file of keys that tests write; the keys are their ids."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write()

    def write(self, **keys: dict[str, Any]) -> None:
        """Write these keys: id -> limits."""
        made = (
            ApiKey(**{"id": name, "tenant": name, "hash": hash_of(name), **limits}) for name, limits in keys.items()
        )
        self.path.write_text("\n".join(map(as_toml, made)))


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.toml")


@pytest.fixture
async def guarded(make_ring: MakeRing, key_file: KeyFile) -> AsyncIterator[Ring]:
    """A ring with the keys `alice` and `bob`, without limits."""
    key_file.write(alice={}, bob={})
    async with make_ring(api_keys=str(key_file.path), api_keys_poll_s=0.01) as ring:
        yield ring

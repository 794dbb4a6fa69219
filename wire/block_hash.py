"""The name of a KV block: a 128-bit keyed BLAKE2b, chained over token ids.

The chain's root binds everything that makes two equal token runs different states (model, adapter, tenant, client salt,
block size), keyed by a secret of the deployment, so that names cannot be guessed or collide on purpose.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

DIGEST_BYTES = 16


def root(
    secret: bytes,
    *,
    model: str,
    block_size: int,
    tenant: str = "",
    cache_salt: str = "",
    adapter: str = "",
    deterministic: bool = False,
) -> bytes:
    """Return the 16-byte start of a chain; `secret` is the deployment's key (up to 64 bytes).

    States of `deterministic` requests are computed in another order, so they are others even for the same ids.
    """
    parts = (model, adapter, tenant, cache_salt, str(block_size), *(("deterministic",) if deterministic else ()))
    data = b"".join(len(raw).to_bytes(4, "little") + raw for raw in (part.encode() for part in parts))
    return hashlib.blake2b(data, key=secret[:64], digest_size=DIGEST_BYTES).digest()


def extend(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the name of the block that holds `token_ids` after the block named `parent`."""
    return hashlib.blake2b(array("i", token_ids).tobytes(), key=parent, digest_size=DIGEST_BYTES).digest()


def chain(start: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Return the names of all full blocks of `token_ids`, in order."""
    names: list[bytes] = []
    parent = start
    ids = array("i", token_ids)
    for at in range(0, len(ids) - block_size + 1, block_size):
        parent = hashlib.blake2b(ids[at : at + block_size].tobytes(), key=parent, digest_size=DIGEST_BYTES).digest()
        names.append(parent)
    return names

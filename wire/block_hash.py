"""The name of a KV block: a 128-bit keyed BLAKE2b, chained over token ids.

The chain's root binds everything that makes two equal token runs different states (model, adapter, tenant, client salt,
block size), keyed by a secret of the deployment, so that names cannot be guessed or collide on purpose.

All pictures have the same image token, so a block that holds a part of one is named by its ids and by the digest of the
picture, whole: none can be made that passes for another.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from wire.messages.images import ImageSpan

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


def extend(parent: bytes, token_ids: Sequence[int], pictures: bytes = b"") -> bytes:
    """Return the name of the block that holds `token_ids` after the block named `parent`.

    `pictures` is what `pictures_in` says of it.
    """
    return hashlib.blake2b(array("i", token_ids).tobytes() + pictures, key=parent, digest_size=DIGEST_BYTES).digest()


def pictures_in(images: Iterable[ImageSpan], begin: int, end: int) -> bytes:
    """Return what tells the tokens `begin` .. `end` - 1 of a prompt from the same ids with other pictures.

    That is the digest of each picture that stands there, and where the block begins in it.
    """
    return b"".join(
        image.digest + (begin - image.position).to_bytes(4, "little", signed=True)
        for image in images
        if image.position < end and begin < image.position + image.num_tokens
    )


def chain(start: bytes, token_ids: Sequence[int], block_size: int, images: Sequence[ImageSpan] = ()) -> list[bytes]:
    """Return the names of all full blocks of `token_ids`, in order; `images` stand among them, in theirs."""
    names: list[bytes] = []
    parent = start
    ids = array("i", token_ids)
    num_past = 0  # pictures; of the others a block holds few, and none behind the first that begins behind it
    for at in range(0, len(ids) - block_size + 1, block_size):
        held = ids[at : at + block_size].tobytes()
        while num_past < len(images) and images[num_past].position + images[num_past].num_tokens <= at:
            num_past += 1
        if num_past < len(images) and images[num_past].position < at + block_size:
            held += pictures_in(images[num_past : num_past + block_size], at, at + block_size)
        parent = hashlib.blake2b(held, key=parent, digest_size=DIGEST_BYTES).digest()
        names.append(parent)
    return names

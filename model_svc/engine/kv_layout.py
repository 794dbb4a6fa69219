"""What the bytes of a KV block mean: two replicas may exchange blocks only if all of this is equal."""

from __future__ import annotations

import hashlib

import msgspec


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A cache's form, and whose states it holds.

    `shapes`: KV heads and head dimension of each tensor: of each layer its keys, then its values, or its latents. With
    `heads_first` a block lies in memory as [K, B, D], else as [B, K, D]. `weights` is a digest of the model's files, so
    that a model that was replaced under its old name is told from the old one. `device` is the kind that computed them:
    what a GPU computes is not to the bit what a CPU would.
    """

    dtype: str
    element_bytes: int
    block_size: int
    heads_first: bool
    shapes: tuple[tuple[int, int], ...]
    model: str = ""
    weights: str = ""
    device: str = ""

    @property
    def block_bytes(self) -> int:
        """How much one block takes, keys and values of all layers."""
        return self.element_bytes * self.block_size * sum(heads * dim for heads, dim in self.shapes)

    @property
    def digest(self) -> str:
        """A short name of the whole."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=8).hexdigest()

    def difference(self, other: KvLayout) -> str:
        """Return the name of the first field in which another layout differs, "" if none does."""
        return next((name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)), "")

"""What the service asks its engine about blocks: copy named ones between the cache and a slot of the staging memory."""

from __future__ import annotations

import msgspec


class ReadBlocks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: put these blocks (names, concatenated) into a slot, up to the first that is not cached."""

    ticket: int
    slot: int
    names: bytes


class WriteBlocks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: take the blocks in a slot into the cache under these names."""

    ticket: int
    slot: int
    names: bytes


class BlocksDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Engine -> service: so many leading blocks of an order were copied. The slot is the service's again."""

    ticket: int
    num_blocks: int

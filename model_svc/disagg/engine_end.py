"""The engine's side of an exchange of blocks: obeys orders between two steps, by plain copies and without any I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from model_svc.disagg.orders import BlocksDone, ReadBlocks, WriteBlocks
from model_svc.disagg.staging import Staging
from model_svc.engine.adoption import adopt
from model_svc.engine.roster import Roster
from wire.block_hash import DIGEST_BYTES


class BlockCopies(Protocol):
    """What a runner can do whose blocks may be exchanged."""

    def read(self, blocks: Sequence[int], target: memoryview) -> None:
        """Copy whole blocks out of the cache; they are there when this returns."""
        ...

    def write(self, blocks: Sequence[int], source: memoryview, places: Sequence[int], num_blocks: int) -> None:
        """Copy the blocks at `places` among the `num_blocks` of `source` into the cache, before any later step."""
        ...


@runtime_checkable
class HasBlocks(Protocol):
    """A runner whose blocks may be exchanged."""

    @property
    def blocks(self) -> BlockCopies:
        """What copies blocks of its cache."""
        ...


def split_names(names: bytes) -> list[bytes]:
    """Return names that stand one after another."""
    return [names[at : at + DIGEST_BYTES] for at in range(0, len(names), DIGEST_BYTES)]


class EngineBlocks:
    """A cache, and the memory that is shared with the service."""

    def __init__(self, roster: Roster, copies: BlockCopies, staging: Staging) -> None:
        self._roster = roster
        self._copies = copies
        self._staging = staging

    def obey(self, order: ReadBlocks | WriteBlocks) -> BlocksDone:
        """Copy what is asked for."""
        names = split_names(order.names)
        if isinstance(order, ReadBlocks):
            blocks = self._roster.pool.match(names)
            if blocks:
                self._copies.read(blocks, self._staging.blocks(order.slot, len(blocks)))
            return BlocksDone(ticket=order.ticket, num_blocks=len(blocks))
        source = self._staging.blocks(order.slot, len(names))

        def fill(blocks: Sequence[int], places: Sequence[int]) -> None:
            self._copies.write(blocks, source, places, len(names))

        return BlocksDone(ticket=order.ticket, num_blocks=adopt(self._roster, names, fill))

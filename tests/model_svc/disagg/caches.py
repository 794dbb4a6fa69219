"""Two caches of one process that exchange blocks over real sockets; the engine's side is obeyed at once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from model_svc.disagg import address
from model_svc.disagg.block_link import BlockLink
from model_svc.disagg.engine_end import EngineBlocks
from model_svc.disagg.fetcher import Fetcher
from model_svc.disagg.orders import ReadBlocks, WriteBlocks
from model_svc.disagg.server import BlockServer
from model_svc.disagg.staging import Staging, open_memory
from model_svc.engine.adoption import adopt
from model_svc.engine.kv_layout import KvLayout
from model_svc.engine.plan import RunnerInfo
from model_svc.engine.policy import policy_named
from model_svc.engine.roster import Roster

SECRET = b"s" * 32
NAMES = [number.to_bytes(16, "little") for number in range(1, 41)]
BLOCK_BYTES = 1 << 20  # four of them fill a slot
LAYOUT = KvLayout(
    dtype="float16", element_bytes=2, block_size=16, heads_first=False, shapes=((64, 256),) * 2, model="m", weights="w"
)
assert LAYOUT.block_bytes == BLOCK_BYTES


class Content:
    """The blocks of a cache; each is one number, repeated."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [-1] * num_blocks

    def read(self, blocks: Sequence[int], target: memoryview) -> None:
        size = len(target) // len(blocks)
        for at, block in enumerate(blocks):
            target[at * size : (at + 1) * size] = bytes([self.blocks[block]]) * size

    def write(self, blocks: Sequence[int], source: memoryview, places: Sequence[int], num_blocks: int) -> None:
        size = len(source) // num_blocks
        for block, place in zip(blocks, places, strict=True):
            assert len(set(source[place * size : (place + 1) * size : 4099])) == 1
            self.blocks[block] = source[place * size]


class Cache:
    """A pool with its content, and what gives it away and fetches into it."""

    def __init__(
        self, *, num_blocks: int = 64, secret: bytes = SECRET, patience_s: float = 60.0, **layout: Any
    ) -> None:
        info = RunnerInfo(
            num_blocks=num_blocks, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=4096,
            vocab_size=8,
        )  # fmt: skip
        self.roster = Roster(info, policy_named("fcfs"), lambda: 0.0)
        self.content = Content(num_blocks)
        self.layout = msgspec.structs.replace(LAYOUT, **layout)
        self.orders: list[ReadBlocks | WriteBlocks] = []
        self.before: Any = None  # called with each order before it is obeyed; what it returns is awaited
        descriptor = open_memory()
        staging = Staging(descriptor, self.layout.block_bytes)
        os.close(descriptor)
        self.engine = EngineBlocks(self.roster, self.content, staging)
        self.link = BlockLink(self._obey, staging)
        self.server = BlockServer(self.link, self.layout, secret)
        self.fetcher = Fetcher(self.link, self.layout, secret, patience_s=patience_s)

    def hold(self, names: Sequence[bytes]) -> None:
        """Cache blocks as if they had been computed; a block's content is its name's first byte."""

        def fill(blocks: Sequence[int], places: Sequence[int]) -> None:
            for block, place in zip(blocks, places, strict=True):
                self.content.blocks[block] = names[place][0]

        assert adopt(self.roster, names, fill) == len(names)

    def held(self, names: Sequence[bytes] = NAMES) -> list[int]:
        """The contents of the leading blocks that are cached."""
        return [self.content.blocks[block] for block in self.roster.pool.match(names)]

    async def _obey(self, order: ReadBlocks | WriteBlocks) -> None:
        self.orders.append(order)
        if self.before is not None:
            await self.before(order)
        self.link.answered(self.engine.obey(order))


@asynccontextmanager
async def serving(cache: Cache, folder: Path, *, host: str = "") -> AsyncIterator[str]:
    """Give a cache's blocks away; yields the address."""
    listener, place = address.listen(str(folder), "m-r", host)
    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cache.server.run, listener)
            yield place
            tasks.cancel_scope.cancel()
    address.leave(place)

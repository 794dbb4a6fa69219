"""Gets blocks from another replica into the own cache. What does not come is computed: nothing here is an error.

A slot's worth is received while the engine still takes the one before it; what arrived before something went wrong
counts, for a chain of blocks is of use from its beginning on.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from dataclasses import dataclass

import anyio
import anyio.abc

from model_svc.disagg.address import connect
from model_svc.disagg.block_link import BlockLink
from model_svc.disagg.errors import TransferError
from model_svc.disagg.pace import Pace
from model_svc.disagg.peer import Ask, Greeting, Part, Peer, sign_ask, signature
from model_svc.disagg.server import NONCE_BYTES
from model_svc.engine.kv_layout import KvLayout
from wire.block_hash import DIGEST_BYTES

log = logging.getLogger(__name__)


@dataclass
class Fetched:
    """What came of a fetch: leading blocks that are in the cache now."""

    num_blocks: int = 0
    seconds: float = 0.0
    failure: str = ""


class Fetcher:
    """Fetches into one cache, and counts."""

    def __init__(self, link: BlockLink, layout: KvLayout, secret: bytes, *, patience_s: float) -> None:
        self.num_blocks = self.num_failed = 0
        self._pace = Pace(time.monotonic)
        self._link = link
        self._layout = layout
        self._secret = secret
        self._patience_s = patience_s

    @property
    def bytes_per_s(self) -> float:
        """How fast blocks come, where the source does not fail; 0 if too little is known."""
        return self._pace.bytes_per_s

    async def fetch(self, address: str, names: bytes, compute_s: float = 0.0) -> Fetched:
        """Get the blocks of a chain, from its first one on; to compute them is thought to take `compute_s`.

        As long as that is worth waiting: a source that computes others' prompts answers between two of its steps.
        """
        fetched, started = Fetched(), anyio.current_time()
        patience_s = max(self._patience_s, compute_s)
        slow = False
        try:
            with anyio.fail_after(patience_s):
                await self._fetch(address, names, fetched)
        except TimeoutError:
            fetched.failure = f"not within {patience_s:.3g} s"
            slow = True
        except ExceptionGroup as group:
            fetched.failure = repr(_expected(group))
        except (OSError, EOFError, TransferError) as error:
            fetched.failure = repr(error)
        fetched.seconds = anyio.current_time() - started
        self.num_blocks += fetched.num_blocks
        if fetched.failure:
            self.num_failed += 1
            num_missing = _count(names) - fetched.num_blocks
            log.warning("%d blocks did not come from %s: %s", num_missing, address, fetched.failure)
        if slow or (fetched.num_blocks and not fetched.failure):
            num_bytes = fetched.num_blocks * self._layout.block_bytes
            self._pace.note(max(num_bytes, 1), max(fetched.seconds, 1e-6))  # a pace of 0 would mean: not known
        return fetched

    async def _fetch(self, address: str, names: bytes, fetched: Fetched) -> None:
        with Peer(await connect(address)) as peer:
            greeting = await peer.receive(Greeting)
            ask = Ask(nonce=secrets.token_bytes(NONCE_BYTES), layout=self._layout, names=names)
            signed = sign_ask(self._secret, greeting, ask)
            await peer.send(Ask(nonce=ask.nonce, layout=ask.layout, names=names, signature=signed))
            answer = signature(self._secret, "server", greeting.nonce, ask.nonce)
            async with anyio.create_task_group() as tasks:
                await self._receive(peer, answer, names, fetched, tasks)

    async def _receive(
        self, peer: Peer, answer: bytes, names: bytes, fetched: Fetched, tasks: anyio.abc.TaskGroup
    ) -> None:
        staging, slots = self._link.staging, self._link.for_writing
        at = 0
        while True:
            part = await peer.receive(Part)
            if not hmac.compare_digest(part.signature, answer):
                raise TransferError("it is no replica of this deployment")
            if part.refused:
                raise TransferError(f"refused: {part.refused}")
            if not 0 <= part.num_blocks <= min(_count(names) - at, staging.blocks_per_slot):
                raise TransferError(f"{part.num_blocks} blocks come at once")
            if part.num_blocks:
                slot = await slots.take()
                try:
                    await peer.receive_into(staging.blocks(slot, part.num_blocks))
                except BaseException:
                    slots.give_back(slot)
                    raise
                here = names[at * DIGEST_BYTES : (at + part.num_blocks) * DIGEST_BYTES]
                tasks.start_soon(self._take_in, slot, here, at, fetched)
                at += part.num_blocks
            if part.last or not part.num_blocks:
                return

    async def _take_in(self, slot: int, names: bytes, at: int, fetched: Fetched) -> None:
        num_blocks = await self._link.write(slot, names)
        if fetched.num_blocks == at:  # else one before it found no room, and this one is of no use
            fetched.num_blocks += num_blocks


def _count(names: bytes) -> int:
    return len(names) // DIGEST_BYTES


def _expected(group: ExceptionGroup[Exception]) -> BaseException:
    """Return the one thing that went wrong. Raises the group if it is none that a transfer may meet."""
    _, others = group.split((OSError, EOFError, TransferError))
    if others is not None:
        raise others
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""Gives blocks to other replicas of the deployment, a slot's worth at a time, for as long as they are cached.

Nothing is pinned: a block that is evicted while its forerunners are under way ends the answer there.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
from collections import deque

import anyio

from model_svc.disagg.block_link import BlockLink, Reading
from model_svc.disagg.errors import TransferError
from model_svc.disagg.peer import Ask, Greeting, Part, Peer, sign_ask, signature
from model_svc.engine.kv_layout import KvLayout
from wire.block_hash import DIGEST_BYTES

log = logging.getLogger(__name__)

NONCE_BYTES = 16
_MAX_CONNECTIONS = 64
_GREET_S = 5.0  # until the request is there
_STALL_S = 10.0  # for a slot's worth


class BlockServer:
    """Answers requests for blocks of one cache."""

    def __init__(self, link: BlockLink, layout: KvLayout, secret: bytes) -> None:
        self.num_blocks = 0  # given so far
        self._link = link
        self._layout = layout
        self._secret = secret

    async def run(self, listener: socket.socket) -> None:
        """Serve whoever connects, until cancelled."""
        limiter = anyio.CapacityLimiter(_MAX_CONNECTIONS)
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    sock, _ = listener.accept()
                except BlockingIOError:
                    await anyio.wait_readable(listener)
                    continue
                except OSError as error:  # no descriptors left, or it was gone before it was taken
                    log.warning("a replica that wants blocks was not heard: %s", error)
                    await anyio.sleep(0.1)
                    continue
                tasks.start_soon(self._serve, sock, limiter)

    async def _serve(self, sock: socket.socket, limiter: anyio.CapacityLimiter) -> None:
        with Peer(sock) as peer:
            try:
                async with limiter:
                    await self._answer(peer)
            except (OSError, EOFError, TimeoutError, TransferError) as error:
                log.info("a replica did not get its blocks: %r", error)

    async def _answer(self, peer: Peer) -> None:
        with anyio.fail_after(_GREET_S):
            greeting = Greeting(nonce=secrets.token_bytes(NONCE_BYTES))
            await peer.send(greeting)
            ask = await peer.receive(Ask)
        if not hmac.compare_digest(sign_ask(self._secret, greeting, ask), ask.signature):
            raise TransferError("it is no replica of this deployment")
        signed = signature(self._secret, "server", greeting.nonce, ask.nonce)
        other = self._layout.difference(ask.layout)
        if other:
            mine, theirs = getattr(self._layout, other), getattr(ask.layout, other)
            refused = f"{other} is {mine!r} here, not {theirs!r}"
            await peer.send(Part(num_blocks=0, last=True, refused=refused, signature=signed))
            return
        await self._give(peer, ask.names, signed)

    async def _give(self, peer: Peer, names: bytes, signed: bytes) -> None:
        """Send the blocks of a chain as far as they are cached.

        As many slots as are free are ordered ahead: the engine fills all of them between two steps. One at a time they
        would take a step each, which is long where it computes others' prompts.
        """
        step = self._link.staging.blocks_per_slot * DIGEST_BYTES
        left = deque(names[at : at + step] for at in range(0, len(names) or 1, step))
        ahead: deque[tuple[int, Reading]] = deque()
        try:
            while left or ahead:
                while left and (not ahead or self._link.for_reading.any_free):
                    part = left.popleft()
                    ahead.append((len(part) // DIGEST_BYTES, await self._link.read(part)))
                wanted, reading = ahead[0]
                num_blocks, body = await reading.done()
                assert num_blocks <= wanted, "more blocks than were asked for"
                last = num_blocks < wanted or not (left or len(ahead) > 1)
                with anyio.fail_after(_STALL_S):
                    await peer.send(Part(num_blocks=num_blocks, last=last, signature=signed), body)
                self.num_blocks += num_blocks
                if last:
                    return
                ahead.popleft()
                reading.release()
        finally:
            for _, reading in ahead:
                reading.release()

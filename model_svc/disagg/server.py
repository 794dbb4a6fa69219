"""Gives blocks to other replicas of the deployment, a slot's worth at a time, for as long as they are cached.

Nothing is pinned: a block that is evicted while its forerunners are under way ends the answer there.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket

import anyio

from model_svc.disagg.block_link import BlockLink
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
        step = self._link.staging.blocks_per_slot * DIGEST_BYTES
        for at in range(0, len(ask.names) or 1, step):
            names = ask.names[at : at + step]
            wanted = len(names) // DIGEST_BYTES
            async with self._link.read(names, wanted) as (num_blocks, body):
                last = num_blocks < wanted or at + step >= len(ask.names)
                with anyio.fail_after(_STALL_S):
                    await peer.send(Part(num_blocks=num_blocks, last=last, signature=signed), body)
            self.num_blocks += num_blocks
            if last:
                return

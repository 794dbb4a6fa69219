"""A replica's part in the sharing of KV blocks: it gives its own away, and fetches those that a placement names."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Protocol

import anyio
import msgspec

from model_svc.disagg import address
from model_svc.disagg.block_link import BlockLink
from model_svc.disagg.fetcher import Fetched, Fetcher
from model_svc.disagg.orders import ReadBlocks, WriteBlocks
from model_svc.disagg.server import BlockServer
from model_svc.disagg.staging import Staging
from model_svc.disagg.weights_digest import weights_digest
from model_svc.engine.kv_layout import KvLayout
from model_svc.settings import ModelSettings
from wire.block_hash import DIGEST_BYTES
from wire.bus import Bus
from wire.messages import Placement, Prompt
from wire.settings import SettingsError
from wire.threads import in_thread

log = logging.getLogger(__name__)

AUTO = "auto"
SECRET = "kv"


class Engine(Protocol):
    """The engine process, as far as its blocks are concerned."""

    staging_fd: int

    async def send(self, message: ReadBlocks | WriteBlocks) -> None:
        """Give an order; `BlockLink.answered` hears of it."""
        ...


class BlockSharing:
    """The open side channel of one replica."""

    def __init__(self, link: BlockLink, layout: KvLayout, secret: bytes, own_address: str, patience_s: float) -> None:
        self.address = own_address
        self.layout = layout
        self.link = link
        self.server = BlockServer(link, layout, secret)
        self.fetcher = Fetcher(link, layout, secret, patience_s=patience_s)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, bus: Bus, engine: Engine, settings: ModelSettings, form: KvLayout, replica_id: str
    ) -> AsyncIterator[BlockSharing | None]:
        """Listen while the block runs; None where nobody can. Raises SettingsError if `kv_host` is no place for it."""
        host = settings.kv_host
        try:
            if host == AUTO:
                host = await in_thread(address.facing, settings.redis_url)
            listener, own = address.listen(settings.state_dir, replica_id, host, settings.kv_port)
        except (OSError, OverflowError) as error:
            if settings.kv_host:
                raise SettingsError(f"kv_host {settings.kv_host}, port {settings.kv_port}: {error}") from error
            log.warning("KV blocks are not shared with other replicas: %s", error)
            yield None
            return
        with ExitStack() as kept:
            kept.callback(address.leave, own)
            kept.enter_context(listener)
            model = settings.served_model
            adapters = [place.path for place in settings.adapters_of(model)]
            weights = await in_thread(weights_digest, settings.model_path(model), *adapters)
            layout = msgspec.structs.replace(form, model=model, weights=weights)
            link = BlockLink(engine.send, Staging(engine.staging_fd, layout.block_bytes))
            sharing = cls(link, layout, await bus.secret(SECRET), own, settings.fetch_timeout_s)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sharing.server.run, listener)
                log.info("KV blocks are given away at %s", own)
                yield sharing
                tasks.cancel_scope.cancel()

    def told(self) -> dict[str, Any]:
        """Return what the heartbeat says of the sharing."""
        fetcher = self.fetcher
        return {
            "kv_address": self.address,
            "kv_layout": self.layout.digest,
            "fetch_bytes_per_s": fetcher.bytes_per_s,
            "num_fetched_blocks": fetcher.num_blocks,
            "num_fetched_bytes": fetcher.num_blocks * self.layout.block_bytes,
            "num_failed_fetches": fetcher.num_failed,
            "num_given_blocks": self.server.num_blocks,
        }

    async def fetch(self, prompt: Prompt, placement: Placement, token_ms: float = 0.0) -> Fetched:
        """Get the blocks of a prompt that the placement's source holds and that are not cached here.

        To compute one of their tokens takes `token_ms`; 0 if that is not known.
        """
        source = placement.source
        if source is None or prompt.block_size != self.layout.block_size:
            return Fetched()
        begin, end = (tokens // prompt.block_size for tokens in (placement.cached_tokens, source.num_tokens))
        names = prompt.block_hashes[begin * DIGEST_BYTES : end * DIGEST_BYTES]
        compute_s = max(0, end - begin) * prompt.block_size * token_ms / 1e3
        return await self.fetcher.fetch(source.address, names, compute_s) if names else Fetched()

"""Says how the replica is: twice a second, and at once when its state changes."""

from __future__ import annotations

import logging
import time
from typing import Any

import anyio
import msgspec

from model_svc.disagg.sharing import BlockSharing
from model_svc.engine.load import EngineLoad
from model_svc.engine.plan import RunnerInfo
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError
from wire.messages import AdapterOutcome, ReplicaStatus

log = logging.getLogger(__name__)

STATUS_MAXLEN = 1_000  # the oldest is dropped: only the newest of a replica counts


class Heartbeat:
    """The replica's state and load as the balancer sees them."""

    def __init__(self, bus: Bus, *, replica_id: str, model: str, interval_s: float) -> None:
        self._bus = bus
        self._replica_id = replica_id
        self._model = model
        self._interval_s = interval_s
        self._changed = anyio.Event()
        self._beating = anyio.Lock()
        self.state = "loading"
        self.died = False
        self.info: RunnerInfo | None = None
        self.load: EngineLoad | None = None
        self.num_generated_tokens = 0
        self.role = "both"
        self.adapters: tuple[str, ...] = ()
        self.adapter_outcomes: dict[str, AdapterOutcome] = {}
        self.sharing: BlockSharing | None = None

    def become(self, state: str) -> None:
        """Change the state and say so at once."""
        self.state = state
        self.beat_soon()

    def beat_soon(self) -> None:
        """Say how it is without waiting for the time to do so."""
        self._changed.set()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._changed = anyio.Event()
            await self.beat()
            with anyio.move_on_after(self._interval_s):
                await self._changed.wait()

    async def beat(self) -> None:
        """Publish one status; while the bus is away nobody could hear it anyway."""
        try:
            async with self._beating:  # an older state must not land behind a newer one
                await self._bus.publish(topics.status(self._model), self._status(), maxlen=STATUS_MAXLEN)
        except HeadraceError as error:
            log.warning("no heartbeat: %r", error)

    def _status(self) -> ReplicaStatus:
        status = ReplicaStatus(
            replica_id=self._replica_id,
            model=self._model,
            state=self.state,
            sent_at=time.time(),
            interval_s=self._interval_s,
            died=self.died,
            adapters=self.adapters,
            adapter_outcomes=self.adapter_outcomes,
        )
        info = self.info
        if info is None:
            return status
        load = self.load or EngineLoad(
            num_free_blocks=info.num_blocks, num_running=0, num_waiting=0, num_waiting_tokens=0
        )
        shared: dict[str, Any] = self.sharing.told() if self.sharing is not None else {}
        return msgspec.structs.replace(
            status,
            role=self.role,
            device=info.device,
            adapter_room=info.adapter_room,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
            kv_bytes_per_token=info.kv_bytes_per_token,
            num_free_blocks=load.num_free_blocks,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_waiting_tokens=load.num_waiting_tokens,
            prefill_token_ms=load.prefill_token_ms,
            kv_waste=load.waste,
            preemptions=load.preemptions,
            num_preemptions=load.num_preemptions,
            num_prefilled_tokens=load.num_prefilled_tokens,
            num_drafts=load.num_drafts,
            num_draft_tokens=load.num_draft_tokens,
            num_accepted_tokens=load.num_accepted_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_tier_blocks=info.num_tier_blocks,
            num_kept_blocks=load.num_kept_blocks,
            num_saved_blocks=load.num_saved_blocks,
            num_loaded_blocks=load.num_loaded_blocks,
            **shared,
        )

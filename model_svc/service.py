"""The model desk: a replica on the bus, with its engine in a process of its own (a model that only reads needs none).

loading -> ready -> draining -> gone. When the engine dies the service ends too: its work is placed elsewhere, and
whoever supervises it starts a new replica with an empty cache and a new name.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskStatus

from model_svc.adapter_keeper import AdapterKeeper
from model_svc.disagg.sharing import BlockSharing
from model_svc.engine_link import TORCH_ENVIRONMENT, EngineDiedError, EngineLink
from model_svc.heartbeat import Heartbeat
from model_svc.lifecycle import become_ready, drain
from model_svc.replica import Replica
from model_svc.settings import ModelSettings
from wire.adapter_record import AdapterRecord
from wire.bus import Bus
from wire.errors import StartError
from wire.model_card import ModelCard

log = logging.getLogger(__name__)

_LAST_WORD_S = 1.0

Share = Callable[..., AbstractAsyncContextManager[BlockSharing | None]]


async def serve(settings: ModelSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve one replica until cancelled, then finish what runs (at most `drain_s`). Raises EngineDiedError.

    It counts as started when the model is loaded.
    """
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve_shielded, settings, stop, task_status)
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()


async def _serve_shielded(settings: ModelSettings, stop: anyio.Event, task_status: TaskStatus[None]) -> None:
    """Run the replica out of reach of the outer cancellation, which only asks it to drain."""
    model = settings.served_model
    replica_id = "-".join(part for part in (model, settings.replica_name, secrets.token_hex(4)) if part)
    log.info("this is replica %s", replica_id)
    with anyio.CancelScope(shield=True):
        async with Bus.open(settings.redis_url) as bus:
            heartbeat = Heartbeat(bus, replica_id=replica_id, model=model, interval_s=settings.heartbeat_s)
            try:
                card = _card(settings)
                if card is not None and card.kind != "chat":
                    # Imported where it is needed: this process does without torch when it has an engine.
                    os.environ.update({**TORCH_ENVIRONMENT, **os.environ})
                    embedding = importlib.import_module("model_svc.embedding.service")
                    await embedding.run(bus, heartbeat, settings, replica_id, stop, task_status)
                else:
                    async with EngineLink.open(settings) as link:
                        who = {"replica_id": replica_id, "model": model}
                        replica = Replica(bus, link, heartbeat, **who, awake_s=settings.awake_s)
                        replica.reader = _reader(bus, card)
                        heartbeat.role = settings.role
                        heartbeat.adapters = tuple(place.name for place in settings.adapters_of(model))
                        if settings.adapter_dir:
                            record = AdapterRecord(bus, model)
                            replica.adapters = AdapterKeeper(record, link, heartbeat, settings.adapter_dir)
                        share = partial(BlockSharing.open, bus, link, settings, replica_id=replica_id)
                        await _run(replica, heartbeat, settings, share, stop, task_status)
                        # At once: its engine may take longer to end than others wait for a heartbeat.
                        await _say_gone(heartbeat)
            except Exception:
                heartbeat.died = True
                raise
            finally:
                if heartbeat.state != "gone":
                    await _say_gone(heartbeat)


async def _say_gone(heartbeat: Heartbeat) -> None:
    heartbeat.state = "gone"
    with anyio.move_on_after(_LAST_WORD_S, shield=True):
        await heartbeat.beat()


def _card(settings: ModelSettings) -> ModelCard | None:
    try:
        return ModelCard.load(settings.model_path(settings.served_model))
    except StartError:
        return None  # whoever loads the model says better what is wrong with it


def _reader(bus: Bus, card: ModelCard | None) -> Any:
    """Return what reads the pictures of prompts for a model that sees; without one Pillow is not imported."""
    if card is None or card.pictures is None:
        return None
    reader = importlib.import_module("model_svc.pictures.reader")
    return reader.PictureReader(bus, card.pictures, card.path)


async def _run(
    replica: Replica,
    heartbeat: Heartbeat,
    settings: ModelSettings,
    share: Share,
    stop: anyio.Event,
    task_status: TaskStatus[None],
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.run)
        tasks.start_soon(replica.follow_engine)
        tasks.start_soon(replica.send_tokens)
        tasks.start_soon(replica.keep_checkpoints)
        tasks.start_soon(drain, replica.requests, heartbeat, settings.drain_s, stop, tasks.cancel_scope)
        await replica.ready.wait()
        form = heartbeat.info.kv if heartbeat.info is not None and settings.kv_sharing else None
        if form is not None:
            # Before work may come: balancers shall know of it from the first heartbeat that says ready.
            await tasks.start(_share_blocks, replica, heartbeat, partial(share, form=form))
        if replica.adapters is not None:
            await tasks.start(replica.adapters.run)
        tasks.start_soon(replica.obey)
        tasks.start_soon(_watch_for_stall, replica, settings.stall_s)
        for partition in range(settings.partitions):
            tasks.start_soon(replica.take_jobs, partition, tasks)
        become_ready(heartbeat, stop, task_status)


async def _share_blocks(
    replica: Replica, heartbeat: Heartbeat, share: Share, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Exchange KV blocks with other replicas until cancelled; work goes on with or without."""
    async with share() as sharing:
        replica.sharing = heartbeat.sharing = sharing
        task_status.started()
        await anyio.sleep_forever()


async def _watch_for_stall(replica: Replica, stall_s: float) -> None:
    """End a replica whose engine hangs: it looks alive to everybody else."""
    while True:
        await anyio.sleep(stall_s / 10)
        if not replica.requests.engine_has_work:
            replica.heard_at = time.monotonic()
        elif time.monotonic() - replica.heard_at > stall_s:
            raise EngineDiedError(f"the engine has said nothing for {stall_s:.0f} s although it has work")

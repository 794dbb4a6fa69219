"""Runs a replica that embeds or scores, inside the model service."""

from __future__ import annotations

import logging

import anyio
import torch
from anyio.abc import TaskStatus

from model_svc.embedding.cross_encoder import CrossEncoder
from model_svc.embedding.embedder import Embedder
from model_svc.embedding.inputs import Input
from model_svc.embedding.replica import EmbeddingReplica
from model_svc.engine.plan import RunnerInfo
from model_svc.heartbeat import Heartbeat
from model_svc.lifecycle import become_ready, drain
from model_svc.runner.device import device_named
from model_svc.settings import ModelSettings
from wire.bus import Bus
from wire.model_card import ModelCard
from wire.settings import SettingsError
from wire.threads import in_thread

log = logging.getLogger(__name__)

_WARM = 512  # tokens that touch all weights; the longest input of some models takes minutes
_DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


async def run(
    bus: Bus,
    heartbeat: Heartbeat,
    settings: ModelSettings,
    replica_id: str,
    stop: anyio.Event,
    task_status: TaskStatus[None],
) -> None:
    """Load the model and serve it until `stop`, then finish what is here."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.run)
        embedder = await in_thread(_load, settings)
        heartbeat.info = _info(embedder, settings)
        replica = EmbeddingReplica(
            bus,
            embedder,
            heartbeat,
            replica_id=replica_id,
            max_tokens=settings.max_num_batched_tokens,
            num_blocks=heartbeat.info.num_blocks,
        )
        tasks.start_soon(drain, replica, heartbeat, settings.drain_s, stop, tasks.cancel_scope)
        tasks.start_soon(replica.batcher.run)
        tasks.start_soon(replica.obey)
        for partition in range(settings.partitions):
            tasks.start_soon(replica.take_jobs, partition, tasks)
        become_ready(heartbeat, stop, task_status)


def _load(settings: ModelSettings) -> Embedder | CrossEncoder:
    if settings.dtype not in _DTYPES:
        raise SettingsError(f"dtype must be one of {', '.join(_DTYPES)} for such a model, not {settings.dtype!r}")
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device_named(settings.device)
    path = settings.model_path(settings.served_model)
    card = ModelCard.load(path)
    max_len = min(card.max_model_len, settings.max_model_len or 1 << 31)
    kind = Embedder if card.kind == "embedding" else CrossEncoder
    embedder = kind(path, max_len=max_len, dtype=_DTYPES[settings.dtype], device=settings.device)
    # The mapped weights come into memory now, not at the first request.
    embedder.embed([Input([0] * min(max_len, _WARM))])
    return embedder


def _info(embedder: Embedder | CrossEncoder, settings: ModelSettings) -> RunnerInfo:
    """Say what fits: there are no KV blocks, so the room is that of the longest inputs a step may hold."""
    return RunnerInfo(
        num_blocks=-(-embedder.max_len // settings.block_size) * settings.max_num_seqs,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=embedder.max_len + 1,  # no token comes after an input
        vocab_size=embedder.encoder.config.vocab_size,
        device=settings.device,
        weight_bytes=embedder.encoder.num_bytes,
    )

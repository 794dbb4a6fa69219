"""The service's hold on the engine process: starts it, speaks with it, and notices at once when it dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

from model_svc.disagg.orders import BlocksDone
from model_svc.disagg.staging import open_memory
from model_svc.engine_messages import AdapterDone, Broken, EngineConfig, Progress, Ready, Refused, ToEngine
from model_svc.pipe import ServiceEnd
from model_svc.settings import ModelSettings
from wire.errors import StartError

_STOP_S = 5.0
_GIB = 1 << 30

MAX_DRAFTS = 64  # guesses in one step, all sequences together: each needs a row of logits
RANKS = "model_svc.parallel.load:load_runner"  # of several ranks, each of which has a runner of the usual factory

# Idle OpenMP threads sleep instead of spinning: beside other work on 2 busy cores a step took 0.17 s instead of 1.5 s
# (SmolLM2-135M, float32, torch 2.13). Whoever has a machine to itself may set it to ACTIVE.
TORCH_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


class EngineDiedError(StartError):
    """The engine process is gone; the message says why, as far as it said so itself."""


def engine_config(settings: ModelSettings, staging_fd: int = -1) -> EngineConfig:
    """Return what the engine process must know of the settings."""
    ways = {name: getattr(settings, name) for name in ("tensor_parallel", "pipeline_parallel")}
    shared = max(ways.values()) > 1
    adapters = tuple((place.name, str(place.path)) for place in settings.adapters_of(settings.served_model))
    return EngineConfig(
        model_path=str(settings.model_path(settings.served_model)),
        runner=RANKS if shared else settings.runner,
        runner_options={
            "device": settings.device,
            "dtype": settings.dtype,
            "kv_dtype": settings.kv_dtype,
            "num_blocks": settings.num_blocks,
            "kv_memory_bytes": settings.kv_memory_bytes,
            "block_size": settings.block_size,
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "max_model_len": settings.max_model_len,
            "threads": settings.threads,
            **({"adapters": adapters} if adapters else {}),
            **_adapter_room(settings),
            **_tier(settings),
            **({"max_drafts": MAX_DRAFTS} if settings.proposer else {}),
            **({**ways, "factory": settings.runner} if shared else {}),
        },
        policy=settings.scheduling_policy,
        inter_token_ms=settings.inter_token_ms,
        patience_s=settings.patience_s,
        proposer=settings.proposer,
        num_draft_tokens=settings.num_draft_tokens,
        stream_interval=settings.stream_interval,
        staging_fd=staging_fd,
        awake_s=settings.awake_s,
        metered=settings.energy,
    )


def _adapter_room(settings: ModelSettings) -> dict[str, int]:
    """Return how much room there is for adapters that come at run time, if they may."""
    names = ("max_adapters", "max_adapter_rank") if settings.adapter_dir else ()
    return {name: getattr(settings, name) for name in names}


def _tier(settings: ModelSettings) -> dict[str, int | str | None]:
    """Return where blocks are kept beside the device, if they are."""
    options: dict[str, int | str | None] = {}
    if settings.kv_ram_gib:
        options["kv_ram_bytes"] = int(settings.kv_ram_gib * _GIB)
    if settings.kv_disk_gib:
        options["kv_disk_bytes"] = int(settings.kv_disk_gib * _GIB)
        options["kv_disk_dir"] = str(Path(settings.state_dir).expanduser() / "kv-blocks")
    return options


async def _start(settings: ModelSettings, pipe_fd: int, staging_fd: int) -> Process:
    command = [sys.executable, "-m", "model_svc.engine_process", str(pipe_fd), str(os.getpid()), settings.log_level]
    return await anyio.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None,
        stderr=None,
        pass_fds=(pipe_fd, staging_fd),
        # Compiled kernels are kept: the next start takes seconds instead of half a minute.
        env={**TORCH_ENVIRONMENT, "TRITON_CACHE_DIR": f"{settings.state_dir}/triton", **os.environ},
    )


class EngineLink:
    """A running engine process."""

    def __init__(self, process: Process, pipe: ServiceEnd, staging_fd: int) -> None:
        self.staging_fd = staging_fd  # of the memory by which blocks are exchanged
        self._process = process
        self._pipe = pipe
        self._reason = ""

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ModelSettings) -> AsyncIterator[EngineLink]:
        """Start the engine process; on leaving it is stopped.

        Call it from the main thread: the engine is killed when the thread that started it ends.
        """
        with ExitStack() as kept:
            ours, theirs = socket.socketpair()
            pipe = ServiceEnd(ours)
            kept.callback(pipe.close)
            staging_fd = open_memory()
            kept.callback(os.close, staging_fd)
            with theirs:
                process = await _start(settings, theirs.fileno(), staging_fd)
            try:
                await pipe.send(engine_config(settings, staging_fd))
                yield cls(process, pipe, staging_fd)
            except Exception:
                if process.returncode is None:
                    process.kill()  # it may hang in a step: nothing more is wanted of it
                raise
            finally:
                kept.close()  # so the engine ends
                with anyio.CancelScope(shield=True):
                    with anyio.move_on_after(_STOP_S):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()
                        await process.wait()

    async def receive(self) -> list[Ready | Refused | Progress | BlocksDone | AdapterDone]:
        """Return the engine's next messages. Raises EngineDiedError."""
        found: list[Ready | Refused | Progress | BlocksDone | AdapterDone] = []
        messages = await self._pipe.receive()
        for message in messages:
            if isinstance(message, Broken):
                self._reason = message.message
            else:
                found.append(message)
        if found:
            return found
        if messages:
            return await self.receive()  # the end of the stream follows the reason
        with anyio.move_on_after(_STOP_S):
            await self._process.wait()
        raise EngineDiedError(self._reason or f"the engine process ended with exit code {self._process.returncode}")

    async def send(self, message: ToEngine) -> None:
        """Send a command; if the engine is gone, `receive` says so."""
        try:
            await self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return

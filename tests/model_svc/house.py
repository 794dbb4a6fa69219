"""A replica under test: the real service and engine process on a real bus; only the runner is scripted."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil

from model_svc.service import serve
from model_svc.settings import ModelSettings
from tests.model_svc.scripted_runner import Script
from tests.processes import command_of
from wire import block_hash, topics
from wire.bus import Bus
from wire.messages import (
    AnyMessage,
    Checkpoint,
    Failure,
    Holder,
    Image,
    Images,
    ImageSpan,
    Job,
    Placement,
    Prompt,
    ReasoningPlan,
    ReplicaStatus,
    Request,
    SamplingParams,
    TokenBatch,
    TokenChunk,
    pack_ids,
)
from wire.vocabulary import byte_alphabet

MODEL = "scripted"
BLOCK_SIZE = 4
EOS = 256
THINK, END_THINK = 257, 258
ROOT = block_hash.root(b"k" * 32, model=MODEL, block_size=BLOCK_SIZE)


def make_model(folder: Path, script: Script) -> Path:
    """Write a model directory: ids 0..255 are bytes, then the end token and the think tags."""
    path = folder / MODEL
    path.mkdir(parents=True)
    vocab = dict(byte_alphabet())
    added = [
        {"id": EOS, "content": "<|end|>", "special": True},
        {"id": THINK, "content": "<think>", "special": False},
        {"id": END_THINK, "content": "</think>", "special": False},
    ]
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": added,
        "decoder": {"type": "ByteLevel"},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"architectures": ["Scripted"], "vocab_size": script.vocab_size, "eos_token_id": EOS}
    (path / "config.json").write_text(json.dumps(config))
    (path / "script.json").write_bytes(msgspec.json.encode(script))
    return path


def settings_for(folder: Path, url: str, **changes: Any) -> ModelSettings:
    """Return settings of a scripted replica."""
    defaults: dict[str, Any] = {
        "redis_url": url,
        "model_dir": str(folder),
        "models": (MODEL,),
        "block_size": BLOCK_SIZE,
        "runner": "tests.model_svc.scripted_runner:load_runner",
        "max_num_seqs": 8,
        "heartbeat_s": 0.1,
        "drain_s": 60.0,
        "fetch_timeout_s": 100.0,  # no busy machine makes a source look slow
    }
    return ModelSettings(**{**defaults, **changes})


def engines_of(pid: int) -> list[psutil.Process]:
    """The engine processes that a service has started."""
    return [child for child in psutil.Process(pid).children() if "model_svc.engine_process" in command_of(child)]


@dataclass
class House:
    """Plays the balancer and one edge."""

    bus: Bus
    replica_id: str = ""
    name: str = ""  # of the replica, where there are several
    edge: str = topics.edge("test")
    statuses: list[ReplicaStatus] = field(default_factory=list)
    chunks: list[TokenChunk] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    batches: list[TokenBatch] = field(default_factory=list)
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def place(self, request_id: str, prompt_ids: list[int], *, max_tokens: int = 8, attempt: int = 0,
                    reasoning: ReasoningPlan | None = None, sampling: SamplingParams | None = None,
                    checkpoint: dict[int, list[int]] | None = None, deadline_s: float = 60.0,
                    partition: int = 0, holder: str = "", ended: tuple[int, ...] = (),
                    placement: dict[str, Any] | None = None, spans: tuple[ImageSpan, ...] = (),
                    images: tuple[Image, ...] = (), **job: Any) -> Job:  # fmt: skip
        """Admit a request straight to the replica's stream, as if all desks before had done their part."""
        envelope = Job(
            request_id=request_id, partition=partition, model=MODEL, edge=self.edge, deadline=time.time() + deadline_s,
            attempt=attempt, timings_ms={"tokenizer.work": 1.5}, **job,
        )  # fmt: skip
        prompt = Prompt(
            token_ids=pack_ids(prompt_ids), num_tokens=len(prompt_ids), block_root=ROOT, block_size=BLOCK_SIZE,
            max_tokens=max_tokens, reasoning=reasoning, images=spans,
            block_hashes=b"".join(block_hash.chain(ROOT, prompt_ids, BLOCK_SIZE, spans)),
        )  # fmt: skip
        fields: dict[str, msgspec.Struct] = {
            "request": Request(model=MODEL, sampling=sampling or SamplingParams()),
            "prompt": prompt,
            "placement": Placement(replica_id=self.replica_id, attempt=attempt, **(placement or {})),
        }
        if images:
            fields["images"] = Images(images=images)
        if checkpoint is not None:
            packed = {choice: pack_ids(ids) for choice, ids in checkpoint.items()}
            fields["checkpoint"] = Checkpoint(attempt=attempt, token_ids=packed, ended=ended)
        if holder:
            fields["holder"] = Holder(edge=holder, deadline=envelope.deadline)
        await self.bus.admit(envelope, fields, to=topics.replica(partition, self.replica_id), ttl_s=60)
        return envelope

    @property
    def stream(self) -> str:
        """The replica's stream of partition 0."""
        return topics.replica(0, self.replica_id)

    async def command(self, message: AnyMessage) -> None:
        """Send something to the replica's control stream."""
        await self.bus.send(topics.control(self.replica_id), message, maxlen=100)

    async def until(self, condition: Any, timeout_s: float = 60.0) -> None:
        """Wait until a condition over what was heard holds."""
        with anyio.fail_after(timeout_s):
            while not condition():
                await self.changed.wait()

    async def until_open_work_is(self, count: int) -> None:
        """Wait until so many entries lie on the replica's stream."""
        with anyio.fail_after(60):
            while len(await self.bus.open_work(0, self.replica_id)) != count:
                await anyio.sleep(0.01)

    def answer(self, request_id: str, choice: int = 0) -> list[int]:
        """The ids received of a choice, in order and without gaps."""
        ids: list[int] = []
        for chunk in self.chunks:
            if (chunk.request_id, chunk.choice) == (request_id, choice):
                ids += chunk.token_ids
        return ids

    def finish_reason(self, request_id: str, choice: int = 0) -> str | None:
        """Why a choice ended, or None."""
        of = [c for c in self.chunks if (c.request_id, c.choice) == (request_id, choice)]
        return of[-1].finish_reason if of else None

    def heard(self) -> None:
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    async def listen(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_edge)
            tasks.start_soon(self._read_statuses)

    async def _read_edge(self) -> None:
        async for message in self.bus.inbox(self.edge):
            if isinstance(message, TokenBatch):
                self.batches.append(message)
                self.chunks += message.chunks
            elif isinstance(message, Failure):
                self.failures.append(message)
            self.heard()

    async def _read_statuses(self) -> None:
        async for message in self.bus.watch(topics.status(MODEL)):
            if isinstance(message, ReplicaStatus) and message.replica_id.startswith(f"{MODEL}-{self.name}"):
                self.statuses.append(message)
                self.replica_id = message.replica_id
            self.heard()


@asynccontextmanager
async def house(bus: Bus, settings: ModelSettings, *, wait: bool = True) -> AsyncIterator[House]:
    """Run a replica; on leaving it is drained."""
    # An inbox has one reader: what one house has read is gone for the other.
    made = House(bus, name=settings.replica_name, edge=topics.edge(f"test{settings.replica_name}"))
    async with anyio.create_task_group() as listeners:
        listeners.start_soon(made.listen)
        async with anyio.create_task_group() as tasks:
            if wait:
                await tasks.start(serve, settings)
                await made.until(lambda: made.statuses and made.statuses[-1].state == "ready")
            else:
                tasks.start_soon(serve, settings)
            yield made
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(60.0):
            await made.until(lambda: made.statuses[-1].state == "gone")
        listeners.cancel_scope.cancel()

"""A replica's adapters that come and go: has the engine load what the record wants, and says what came of it.

One that is wanted no longer may be asked for by requests that are under way: it is kept for a while, unless its place
is needed. Those that it answers then go on to their end.
"""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from model_svc.adapter_place import place_below
from model_svc.engine_link import EngineLink
from model_svc.engine_messages import AdapterDone, DropAdapter, LoadAdapter
from model_svc.heartbeat import Heartbeat
from wire.adapter_record import AdapterRecord, WantedAdapter, WantedAdapters
from wire.adapters import name_with_digest
from wire.messages import AdapterOutcome
from wire.threads import in_thread

log = logging.getLogger(__name__)

GRACE_S = 10.0


class AdapterKeeper:
    """Keeps the adapters of one replica as the record wants them."""

    def __init__(
        self, record: AdapterRecord, link: EngineLink, heartbeat: Heartbeat, folder: str, *, grace_s: float = GRACE_S
    ) -> None:
        """`folder` is the `adapter_dir`."""
        self._record = record
        self._link = link
        self._heartbeat = heartbeat
        self._folder = Path(folder).expanduser()
        self._grace_s = grace_s
        self._given = heartbeat.adapters  # from the start on, for ever
        self._outcomes: dict[str, AdapterOutcome] = {}
        self._here: dict[str, str] = {}  # by revision, what is loaded
        self._leaving: set[str] = set()
        self._answered = anyio.Event()
        self._answer = AdapterDone(revision="")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the record until cancelled; started when all that it wanted at first is here, or cannot be."""
        async with anyio.create_task_group() as tasks:
            async for wanted in self._record.follow():
                await self._keep(wanted, tasks)
                task_status.started()
                task_status = anyio.TASK_STATUS_IGNORED

    def answered(self, done: AdapterDone) -> None:
        """Take what the engine says of a load."""
        self._answer = done
        self._answered.set()

    async def _keep(self, wanted: WantedAdapters, tasks: TaskGroup) -> None:
        revisions = wanted.by_revision
        gone = [revision for revision in self._here if revision not in revisions]
        left = {self._here.pop(revision) for revision in gone} - set(self._here.values())
        self._outcomes = {revision: self._outcomes[revision] for revision in self._outcomes if revision in revisions}
        self._leaving |= left
        self._tell()
        for name in left:
            tasks.start_soon(self._let_go_later, name)
        for revision, one in revisions.items():
            if revision not in self._here:
                await self._load(one)
                self._tell()

    async def _load(self, wanted: WantedAdapter) -> None:
        room = self._heartbeat.info.adapter_room if self._heartbeat.info is not None else 0
        if len(set(self._here.values()) | self._leaving) >= room:
            for name in tuple(self._leaving):
                await self._let_go(name)
        try:
            directory = await in_thread(place_below, self._folder, wanted.path)
        except ValueError as error:
            self._outcomes[wanted.revision] = AdapterOutcome(fault=str(error))
            return
        self._answered = anyio.Event()
        order = LoadAdapter(
            revision=wanted.revision, name=wanted.name, directory=str(directory), digest=wanted.digest
        )  # fmt: skip
        await self._link.send(order)
        await self._answered.wait()
        digest, fault = self._answer.digest, self._answer.fault
        self._outcomes[wanted.revision] = AdapterOutcome(digest, fault)
        if fault:
            log.error("the adapter %s cannot be served: %s", wanted.name, fault)
            return
        name = name_with_digest(wanted.name, digest)
        self._here[wanted.revision] = name
        self._leaving.discard(name)

    async def _let_go_later(self, name: str) -> None:
        await anyio.sleep(self._grace_s)
        await self._let_go(name)

    async def _let_go(self, name: str) -> None:
        if name in self._leaving:
            self._leaving.discard(name)
            self._tell()
            await self._link.send(DropAdapter(name=name))

    def _tell(self) -> None:
        heartbeat = self._heartbeat
        heartbeat.adapters = (*self._given, *sorted(set(self._here.values()) | self._leaving))
        heartbeat.adapter_outcomes = dict(self._outcomes)
        heartbeat.beat_soon()

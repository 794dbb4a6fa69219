"""Adapters that come and go at run time: what the record says is offered here, and what operators want is seen through.

A load is asked for in the record, by which all replicas of the model learn of it; what came of it stands in their
heartbeats. Only when all of them have it, and the same, is it served.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

import anyio
import msgspec

from gateway.edge.readiness import Replicas
from gateway.edge.served import Served
from wire.adapter_record import AdapterRecord, WantedAdapter
from wire.bus import Bus
from wire.errors import (
    ConflictError,
    DeadlineExceededError,
    HeadraceError,
    InvalidRequestError,
    ModelNotFoundError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_LOAD_S = 300.0
_LOOK_S = 1.0  # a replica that dies says nothing
_SETTLE_S = 5.0
_SEEN_S = 60.0


class RuntimeAdapters:
    """The adapters of one edge's models that come and go."""

    def __init__(self, bus: Bus, served: Served, replicas: Replicas) -> None:
        self._served = served
        self._replicas = replicas
        self._offered = anyio.Event()
        self._records = {model: AdapterRecord(bus, model) for model in served.generating}

    @property
    def models(self) -> tuple[str, ...]:
        """The models that can have some."""
        return tuple(self._records)

    async def follow(self, model: str) -> None:
        """Offer what a model's record says, until cancelled."""
        async for wanted in self._records[model].follow():
            self._served.offer(model, wanted.served)
            offered, self._offered = self._offered, anyio.Event()
            offered.set()

    async def load(self, model: str, name: str, path: str, *, replace: bool) -> None:
        """Have an adapter loaded by all replicas of a model, and serve it.

        Raises InvalidRequestError that names the field, UnavailableError, ConflictError or DeadlineExceededError.
        """
        self._served.check_new_name(name, of=model, replace=replace)
        self._check_room(model)
        record = self._records[model]
        wanted = WantedAdapter(name=name, path=path, revision=secrets.token_hex(8), at=int(time.time()))
        if not await record.ask(wanted, replace=replace):
            message = f"lora_name: {name!r} is loaded already; send load_inplace true to replace it"
            raise InvalidRequestError(message, param="lora_name")
        try:
            digest = await self._loaded(model, wanted.revision)
            if not await record.serve(wanted, digest):
                raise ConflictError(f"Somebody else loads or removes {name!r} just now.")
        except BaseException:
            with anyio.move_on_after(_SETTLE_S, shield=True):
                try:
                    await record.take_back(wanted)
                except HeadraceError as error:
                    logger.warning("adapter %s is still asked for: %s", name, error.message)
            raise
        known = msgspec.structs.replace(wanted, digest=digest).id
        await self._until(lambda: self._served.adapter_id(name) == known)

    async def unload(self, name: str) -> None:
        """Serve an adapter no longer. Raises ModelNotFoundError, or InvalidRequestError for one that is set."""
        model = self._served.adapter_base(name)
        if model not in self._records:
            raise ModelNotFoundError(f"The adapter {name[:80]!r} is not served here.", param="lora_name")
        known = self._served.adapter_id(name)
        await self._records[model].remove(name)
        await self._until(lambda: self._served.adapter_id(name) != known)

    async def _until(self, seen: Callable[[], bool]) -> None:
        """Wait until what was written comes back: only what `follow` reads is offered, so nothing older comes last."""
        with anyio.move_on_after(_SEEN_S):
            while not seen():
                await self._offered.wait()

    def _check_room(self, model: str) -> None:
        ready = self._replicas.ready(model)
        if not ready:
            raise UnavailableError(f"No replica of {model} is ready to load an adapter.", retry_after_s=5.0)
        without = [status.replica_id for status in ready if not status.adapter_room]
        if without:
            message = f"The replica {without[0]} has no room for adapters at run time; set adapter_dir where it starts."
            raise UnavailableError(message)

    async def _loaded(self, model: str, revision: str) -> str:
        """Wait until every ready replica has a load behind it; returns the digest of what they have."""
        missing: list[str] = []
        with anyio.move_on_after(_LOAD_S):
            while True:
                news = self._replicas.news()
                told = {one.replica_id: one.adapter_outcomes.get(revision) for one in self._replicas.ready(model)}
                for replica_id, outcome in told.items():
                    if outcome is not None and outcome.fault:
                        raise InvalidRequestError(f"lora_path: {outcome.fault} ({replica_id})", param="lora_path")
                digests = {outcome.digest for outcome in told.values() if outcome is not None}
                missing = [replica_id for replica_id, outcome in told.items() if outcome is None]
                if len(digests) > 1:
                    message = "lora_path: replicas find different files there; give all of them the same"
                    raise InvalidRequestError(message, param="lora_path")
                if digests and not missing:
                    return digests.pop()
                with anyio.move_on_after(_LOOK_S):
                    await news.wait()
        raise DeadlineExceededError(f"Not loaded within {_LOAD_S:g} s by {', '.join(missing) or 'any replica'}.")

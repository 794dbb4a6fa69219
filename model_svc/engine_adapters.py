"""The engine's part in adapters that come and go: between two steps a bit of a load, and places that are free again."""

from __future__ import annotations

import logging

from model_svc.engine.adapter_places import AdapterPlaces
from model_svc.engine.engine import Engine
from model_svc.engine_messages import AdapterDone, DropAdapter, LoadAdapter
from model_svc.pipe import EngineEnd
from model_svc.weights.errors import CheckpointError
from wire.adapters import name_with_digest

log = logging.getLogger(__name__)


class EngineAdapters:
    """Does what the service orders. Loads come one at a time: the next when the last one is answered."""

    def __init__(self, pipe: EngineEnd, engine: Engine, places: AdapterPlaces | None) -> None:
        self._pipe = pipe
        self._engine = engine
        self._places = places
        self._loading: LoadAdapter | None = None
        self._leaving: set[str] = set()

    @property
    def is_loading(self) -> bool:
        """Whether there is a load for `advance` to go on with."""
        return self._loading is not None

    @property
    def is_reading(self) -> bool:
        """Whether it waits for files."""
        return self._loading is not None and self._places is not None and self._places.is_reading

    def load(self, order: LoadAdapter) -> None:
        """Begin a load."""
        self._free_places()
        try:
            if self._places is None:
                raise CheckpointError(order.name, "this replica has no room for adapters at run time")
            self._places.begin(order.name, order.directory)
        except CheckpointError as error:
            self._answer(order, fault=str(error))
        else:
            self._loading = order

    def drop(self, order: DropAdapter) -> None:
        """Take no more requests for an adapter; its place is free when those that it has have ended."""
        self._engine.adapters.discard(order.name)
        self._leaving.add(order.name)

    def advance(self) -> None:
        """Do a part of the load under way."""
        if self._leaving:
            self._free_places()
        order, places = self._loading, self._places
        if order is None or places is None:
            return
        try:
            digest = places.advance()
        except CheckpointError as error:
            self._loading = None
            self._answer(order, fault=str(error))
            return
        if digest is None:
            return
        self._loading = None
        name = name_with_digest(order.name, digest)
        if order.digest not in ("", digest):
            if name not in self._engine.adapters:
                self._leaving.add(name)
            self._answer(order, fault=f"{order.name}: the files are not those that the other replicas have")
            return
        self._leaving.discard(name)
        self._engine.adapters.add(name)
        log.info("adapter %s can be asked for", name)
        self._answer(order, digest=digest)

    def _free_places(self) -> None:
        for name in [name for name in self._leaving if not self._engine.uses_adapter(name)]:
            self._leaving.discard(name)
            if self._places is not None:
                self._places.drop(name)

    def _answer(self, order: LoadAdapter, *, digest: str = "", fault: str = "") -> None:
        self._pipe.send(AdapterDone(revision=order.revision, digest=digest, fault=fault))

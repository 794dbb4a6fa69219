"""Adapters that come and go where several ranks have a part of each: all have it, or none.

Each rank reads for itself. When rank 0 has read, it asks the others how far they are before it goes on; a rank that
cannot read its part takes back what the others did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from model_svc.engine.adapter_places import AdapterPlaces, HasAdapterPlaces
from model_svc.engine.plan import Runner
from model_svc.parallel.orders import AdapterOrder, AdvanceAdapter, BeginAdapter, LeaveAdapter
from model_svc.weights.errors import CheckpointError

if TYPE_CHECKING:  # a rank imports torch later, and tells then how long that took
    from model_svc.layers.group import Group

_FAILED, _UNDER_WAY, _DONE = range(3)


class SharedPlaces:
    """Rank 0's hand on the places of all ranks. Implements the engine's AdapterPlaces protocol.

    `tell` gives the others an order; `here` calls a function where this rank's steps are computed.
    """

    def __init__(
        self,
        own: AdapterPlaces,
        group: Group,
        tell: Callable[[AdapterOrder], None],
        here: Callable[[Callable[[], object]], object],
    ) -> None:
        self._own = own
        self._group = group
        self._tell = tell
        self._here = here

    def begin(self, name: str, directory: str) -> None:
        """Begin to read an adapter on all ranks. Raises CheckpointError where there is no room for it."""
        self._own.begin(name, directory)  # if there is room here there is everywhere
        self._tell(BeginAdapter(name, directory))

    @property
    def is_reading(self) -> bool:
        """Tell whether this rank is still reading."""
        return self._own.is_reading

    def advance(self) -> str | None:
        """Do a part of what is left on all ranks; returns the digest when all have ended. Raises CheckpointError."""
        if self._own.is_reading:
            return None
        self._tell(AdvanceAdapter())
        digest = self._here(lambda: advance_together(self._own, self._group))
        assert digest is None or isinstance(digest, str)
        return digest

    def abandon(self) -> None:
        """Forget the load under way: `advance` has seen to that everywhere."""
        self._own.abandon()

    def drop(self, name: str) -> None:
        """Give up the place of an adapter that no sequence has any more."""
        self._tell(LeaveAdapter(name))
        self._here(lambda: self._own.drop(name))


def advance_together(places: AdapterPlaces, group: Group) -> str | None:
    """Do this rank's part; returns the digest when all ranks have ended. Raises CheckpointError when one cannot."""
    digest, fault = None, None
    try:
        digest = places.advance()
    except CheckpointError as error:
        fault = error
    least = group.least(_FAILED if fault is not None else _UNDER_WAY if digest is None else _DONE)
    if least == _FAILED:
        places.abandon()
        raise fault or CheckpointError("adapter", "another rank cannot read its part of it")
    return digest if least == _DONE else None


def obey_adapter_order(runner: Runner, group: Group, order: AdapterOrder) -> None:
    """Do what rank 0 does with an adapter."""
    assert isinstance(runner, HasAdapterPlaces), "rank 0 has asked whether there is room"
    places = runner.adapter_places
    match order:
        case BeginAdapter(name, directory):
            places.begin(name, directory)
        case LeaveAdapter(name):
            places.drop(name)
        case AdvanceAdapter():
            try:
                advance_together(places, group)
            except CheckpointError:
                return  # rank 0 knows, and says so

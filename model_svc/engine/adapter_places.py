"""Where a runner has room for adapters that come and go while it works."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class AdapterPlaces(Protocol):
    """Room for adapters that come and go while the runner works, one load at a time.

    An adapter goes by its name and the digest of its files (`wire.adapters.name_with_digest`). Nothing here waits.
    """

    def begin(self, name: str, directory: str) -> None:
        """Begin to read an adapter. Raises CheckpointError where there is no room for it."""
        ...

    @property
    def is_reading(self) -> bool:
        """Tell whether `advance` would do nothing yet."""
        ...

    def advance(self) -> str | None:
        """Do a part of what is left; returns the digest when the adapter can be asked for. Raises CheckpointError."""
        ...

    def abandon(self) -> None:
        """Forget the load under way, or just behind us: another rank cannot end it."""
        ...

    def drop(self, name: str) -> None:
        """Give up the place of an adapter that no sequence has any more."""
        ...


@runtime_checkable
class HasAdapterPlaces(Protocol):
    """A runner that may have such room (`RunnerInfo.adapter_room`)."""

    @property
    def adapter_places(self) -> AdapterPlaces:
        """The room."""
        ...

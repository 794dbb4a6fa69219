"""The fields of a `quantization_config`, read so that what is not supported is refused by field and value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_svc.weights.errors import CheckpointError


class Fields:
    """A mapping of config.json at `path`; `place` is how its fields are named in messages."""

    def __init__(self, path: Path, raw: Mapping[str, Any], place: str = "quantization_config") -> None:
        self._path = path
        self._raw = raw
        self._place = place

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field; null counts as absent."""
        value = self._raw.get(name)
        return default if value is None else value

    def refuse(self, name: str, wanted: str) -> CheckpointError:
        """Return the error that says what a field is and what it may be."""
        return CheckpointError(self._path, f"{self._place}.{name} is {self._raw.get(name)!r}; supported: {wanted}")

    def one_of(self, name: str, known: tuple[Any, ...], default: Any = None) -> Any:
        """Return a field that must be one of `known` (words in either case); its absence stands for `default`."""
        value = self.get(name, default)
        value = value.lower() if isinstance(value, str) else value
        if not any(value == item and type(value) is type(item) for item in known):
            raise self.refuse(name, ", ".join(str(item) for item in known))
        return value

    def absent(self, *names: str) -> None:
        """Refuse fields that say anything."""
        for name in names:
            if self.get(name):
                raise self.refuse(name, "nothing")

    def group_size(self, default: int = 128) -> int:
        """Return `group_size`: -1 for one group of all inputs."""
        value = self.get("group_size", default)
        if type(value) is not int or (value != -1 and value < 1):
            raise self.refuse("group_size", "-1 or a positive integer")
        return value

    def pair(self, name: str) -> tuple[int, int] | None:
        """Return two sizes, of a block."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(type(item) is int and item > 0 for item in value):
            raise self.refuse(name, "two positive integers")
        return value[0], value[1]

    def names(self, *names: str) -> tuple[str, ...]:
        """Return the first of these fields that is there, a list of module names."""
        for name in names:
            value = self.get(name)
            if value is not None:
                if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                    raise self.refuse(name, "a list of module names")
                return tuple(value)
        return ()

    def at(self, name: str) -> Fields:
        """Return the fields of an object in this one; none if it is absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.refuse(name, "an object")
        return Fields(self._path, value, f"{self._place}.{name}")

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(self._raw)

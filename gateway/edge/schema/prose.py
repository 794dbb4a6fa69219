"""JSON that describes something: which of its strings are prose, which may be rewritten without changing what holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PROSE = frozenset(("description", "title", "$comment"))
_VALUES = frozenset(("const", "enum", "default", "examples"))  # what stands there is data, whatever its keys are


def map_json(value: Any, string: Callable[[str, bool], str], *, key: Callable[[str], str] | None = None) -> Any:
    """Return a JSON value with each string as `string` gives it, told whether it is prose, and its keys as `key`."""
    return _map(value, string, key or str, is_prose=False, is_data=False)


def without_prose(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema with empty descriptions and titles: nothing hangs on them."""
    found: dict[str, Any] = map_json(schema, lambda text, is_prose: "" if is_prose else text)
    return found


def _map(
    value: Any, string: Callable[[str, bool], str], key: Callable[[str], str], *, is_prose: bool, is_data: bool
) -> Any:
    if isinstance(value, str):
        return string(value, is_prose)
    if isinstance(value, list):
        return [_map(one, string, key, is_prose=False, is_data=is_data) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key(name): _map(one, string, key, is_prose=name in _PROSE and not is_data, is_data=is_data or name in _VALUES)
        for name, one in value.items()
    }

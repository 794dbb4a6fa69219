"""Whether any finite JSON value can satisfy a schema: with a recursion that has no way out an answer would never end.

A least fixed point over the places that `$ref` leads to: a place is finite once its schema is, given those known to be.
"""

from __future__ import annotations

from typing import Any

from wire.errors import InvalidRequestError

_MAX_VISITS = 100_000  # of nodes, some 30 ms; schemas of people need a few thousand


class _Finiteness:
    def __init__(self, root: dict[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._finite: set[str] = set()
        self._visits = 0

    def known(self) -> bool:
        """Return whether the root has a finite value."""
        pointers = self._pointers()
        grown = True
        while grown:
            pointers.reverse()  # chains resolve in one round in one of the two directions
            before = len(self._finite)
            for pointer in pointers:
                if pointer not in self._finite and self._check(resolve(self._root, pointer)):
                    self._finite.add(pointer)
            grown = len(self._finite) > before
        return self._check(self._root)

    def _pointers(self) -> list[str]:
        found: dict[str, None] = {}
        stack: list[Any] = [self._root]
        while stack:
            node = stack.pop()
            if isinstance(node, dict):
                if isinstance(node.get("$ref"), str):
                    found[node["$ref"]] = None
                stack += node.values()
            elif isinstance(node, list):
                stack += node
        return list(found)

    def _check(self, schema: Any) -> bool:
        self._visits += 1
        if self._visits > _MAX_VISITS:
            raise InvalidRequestError(f"{self._param}: its references are too intertwined.", param=self._param)
        if not isinstance(schema, dict):
            return schema is not False
        to = schema.get("$ref")
        if isinstance(to, str) and to not in self._finite:
            return False
        if not all(map(self._check, _list(schema.get("allOf")))):
            return False
        for name in ("anyOf", "oneOf"):
            options = _list(schema.get(name))
            if options and not any(map(self._check, options)):
                return False
        if "const" in schema or "enum" in schema:
            return True
        return self._has_finite_type(schema)

    def _has_finite_type(self, schema: dict[str, Any]) -> bool:
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not all(kind in ("object", "array") for kind in kinds):
            return True  # a number or a string will do
        return ("object" in kinds and self._object(schema)) or ("array" in kinds and self._array(schema))

    def _object(self, schema: dict[str, Any]) -> bool:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        others = schema.get("additionalProperties", True)
        names = _list(schema.get("required"))
        return all(self._check(properties.get(name, others) if isinstance(name, str) else True) for name in names)

    def _array(self, schema: dict[str, Any]) -> bool:
        least = schema.get("minItems", 0)
        if not isinstance(least, int) or least <= 0:
            return True
        first = _list(schema.get("prefixItems"))
        rest = [schema.get("items", True)] if least > len(first) else []
        return all(map(self._check, (*first[:least], *rest)))


def has_finite_value(schema: dict[str, Any], param: str) -> bool:
    """Return whether a schema has a finite value, as far as recursion goes. Raises InvalidRequestError naming `param`.

    References that lead out of the schema count as finite: the compiler refuses them with a better message.
    """
    return _Finiteness(schema, param).known()


def resolve(root: dict[str, Any], pointer: str) -> Any:
    """Follow a JSON pointer; True if it leads nowhere."""
    if pointer != "#" and not pointer.startswith("#/"):
        return True
    node: Any = root
    for part in pointer[2:].split("/") if pointer != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(node):
            node = node[int(key)]
        else:
            return True
    return node


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

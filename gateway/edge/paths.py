"""Paths as clients put them together: a base URL that ends with a slash, one that ends with /v1 or does not.

Slashes too many mean nothing. Whether /v1 belongs to the base URL is told apart by client (OpenAI's want it there,
Anthropic's do not), so a path that is one /v1 off is not served, but told where it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import Match, Route
from starlette.types import Scope

_BASE = "/v1"


def plain(path: str) -> str:
    """Return a path without empty parts."""
    if "//" not in path and (len(path) == 1 or not path.endswith("/")):
        return path
    return "/" + "/".join(part for part in path.split("/") if part)


def hint(scope: Scope, routes: Iterable[Route]) -> str:
    """Return where the route is that was meant by a path that leads nowhere, "" if none is known."""
    path: str = scope["path"]
    meant = path.removeprefix(_BASE) if path.startswith(f"{_BASE}{_BASE}/") else _BASE + path
    if not any(route.matches({**scope, "path": meant})[0] is Match.FULL for route in routes):
        return ""
    return f" It is {meant}: base URLs of OpenAI's clients end with {_BASE}, those of Anthropic's do not."

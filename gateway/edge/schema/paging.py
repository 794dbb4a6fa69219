"""`limit`, `after`, `order` and `include` in queries."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.edge.schema.responses import check_include
from gateway.edge.schema.sampling import fail

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


def read_page(request: Request, *, order: str | None = None) -> dict[str, Any]:
    """Return the arguments of a page; `order` is the default of lists that have one. Raises InvalidRequestError."""
    query = request.query_params
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MAX_LIMIT):
        raise fail("limit", f"must be a number from 1 to {MAX_LIMIT}, not {limit[:40]!r}.")
    page: dict[str, Any] = {"limit": int(limit), "after": query.get("after")}
    if order is not None:
        page["order"] = query.get("order", order)
        if page["order"] not in ("asc", "desc"):
            raise fail("order", f"must be 'asc' or 'desc', not {page['order'][:40]!r}.")
    return page


def read_include(request: Request) -> frozenset[str]:
    """Return what the query wants included. Raises InvalidRequestError for what nobody could include."""
    include = [*request.query_params.getlist("include"), *request.query_params.getlist("include[]")]
    check_include(include)
    return frozenset(include)

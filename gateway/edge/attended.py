"""A whole answer that takes time: work on it goes on only while its client is connected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from starlette.requests import Request
from starlette.responses import Response

from gateway.edge.errors import error_response
from gateway.edge.streaming import cancel_when_gone
from wire.errors import HeadraceError, RequestCancelledError


async def attended(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """Return the answer that `work` gives, or its error; a client that leaves cancels it."""
    gone = RequestCancelledError("The client left before its answer was there.")
    answer = error_response(gone, request.scope)

    async def answer_it() -> None:
        nonlocal answer
        try:
            answer = await work()
        except HeadraceError as error:
            answer = error_response(error, request.scope)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_gone, request.receive, tasks.cancel_scope)
        tasks.start_soon(answer_it)
    return answer

"""Answers a generation over HTTP: as a stream, or collected into one object.

Headers are held until the first token or failure, so that an early failure has its true status, but never longer than
one keep-alive interval. A client that leaves ends its request at once, in whichever of the two forms it asked for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.edge.bell import Bell
from gateway.edge.bill import Bill
from gateway.edge.control import Controls
from gateway.edge.errors import error_response
from gateway.edge.generation import Generation
from gateway.edge.jsontext import to_json
from gateway.edge.reply import ChoiceUpdate, Reply
from gateway.edge.resumable import Resumable
from gateway.edge.settings import EdgeSettings
from gateway.edge.streaming import COMMENT, LONE_COMMENT, Block, EventStream, Live, cancel_when_gone, until_gone
from wire.errors import HeadraceError

logger = logging.getLogger(__name__)


class Answer(Protocol):
    """A generation, or a batch of them."""

    reply: Reply
    error: HeadraceError | None
    bell: Bell
    """It rings when there are news."""

    @property
    def name(self) -> str:
        """Return its name in the log."""

    @property
    def generations(self) -> tuple[Generation, ...]:
        """Return the requests that it is made of."""

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is something to answer with, or until the time is up."""

    def raise_early_failure(self) -> None:
        """Raise the error that came before any token."""

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer."""

    @property
    def ended(self) -> bool:
        """Tell whether all choices have a finish reason."""

    async def take_updates(self) -> list[ChoiceUpdate]:
        """Wait for tokens and return what is new, which may be nothing."""

    def take_at_once(self) -> list[ChoiceUpdate] | None:
        """Return what is new, or None if it needs more than a call."""

    async def settle(self, status: str = "") -> Bill:
        """Make up the bill."""


Start = Callable[[], AbstractAsyncContextManager[Answer]]


class GenerationResponse:
    """The HTTP answer to an admitted request. `start` admits it when the answer begins."""

    def __init__(
        self, start: Start, *, stream: bool, settings: EdgeSettings, resumable: Resumable | None = None
    ) -> None:
        self._start = start
        self._resumable = resumable
        self._stream = stream
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the answer; returns early when the client is gone."""
        try:
            async with self._start() as generation:
                controls: Controls = scope["app"].state.edge.controls
                names = (scope["headrace.request_id"], generation.reply.id)
                answer = self._send_stream if self._stream else self._send_whole
                with controls.known_as(names, generation.generations):
                    await answer(generation, scope, receive, send)
        except HeadraceError as error:  # before the first byte
            await error_response(error, scope)(scope, receive, send)

    async def _send_whole(self, generation: Answer, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope)
            response = await _whole(generation, scope)
            tasks.cancel_scope.cancel()
        if response is not None:
            await response(scope, receive, send)

    async def _send_stream(self, generation: Answer, scope: Scope, receive: Receive, send: Send) -> None:
        early: HeadraceError | None = None
        stream: EventStream | None = None
        is_over = False

        async def answer() -> None:
            nonlocal early, stream, is_over
            await generation.wait(self._settings.keep_alive_s)
            try:
                generation.raise_early_failure()
            except HeadraceError as error:
                early = error
            else:
                stream = self._stream_of(generation)
                await stream.write(scope, send, tasks)
                is_over = True  # and the server tells the listener so
                return
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:  # one listener from the first wait to the last event
                tasks.start_soon(answer)  # see `EventStream.__call__`: this task is the listener
                await until_gone(receive)
                if not is_over:
                    tasks.cancel_scope.cancel()
        finally:
            if self._resumable is not None:
                self._resumable.leave(generation.generations[0])
        if early is not None:
            raise early
        if stream is not None and stream.gave_up:
            logger.info("request %s: the client took nothing for too long", generation.name)

    def _stream_of(self, generation: Answer) -> EventStream:
        resumable = self._resumable
        events = _Events(generation)
        return EventStream(
            events.blocks() if resumable is None else resumable.blocks(generation.generations[0]),
            keep_alive_s=self._settings.keep_alive_s,
            send_timeout_s=self._settings.send_timeout_s,
            headers=generation.headers(),
            comment=COMMENT if resumable is None else LONE_COMMENT,
            live=Live(generation.bell, events.at_once) if resumable is None else None,
        )


async def _whole(generation: Answer, scope: Scope) -> Response:
    """Collect the answer, or the error that ended it."""
    try:
        while not generation.ended:
            generation.reply.absorb(await generation.take_updates())
        bill = await generation.settle()
        body = to_json(generation.reply.whole(bill))
    except HeadraceError as error:
        generation.error = error
        return error_response(error, scope)
    return Response(body, headers=generation.headers(), media_type="application/json")


class _Events:
    """The events of an answer: all in blocks, for a task, and those of the middle by a call, while the task waits."""

    def __init__(self, generation: Answer) -> None:
        self._generation = generation
        self._is_open = False

    async def blocks(self) -> AsyncGenerator[Block, None]:
        """Yield what no call has taken; the turn of a stored response is published before its last event."""
        generation, reply = self._generation, self._generation.reply
        try:
            while not generation.ended:
                if updates := await generation.take_updates():
                    yield Block(self._opening() + reply.events(updates))
            bill = await generation.settle()
        except HeadraceError as error:
            generation.error = error
            yield Block(self._opening() + await self._failed(error), last=True)
        else:
            yield Block(self._opening() + reply.closing(bill), last=True)

    def at_once(self) -> bytes | None:
        """Return the events of what is new; None: it is for the task."""
        updates = self._generation.take_at_once() if self._is_open else None
        return None if updates is None else self._generation.reply.events(updates)

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        return self._generation.reply.opening()

    async def _failed(self, error: HeadraceError) -> bytes:
        try:
            await self._generation.settle("failed")
        except HeadraceError:
            logger.exception("request %s: its failed turn could not be stored", self._generation.name)
        return self._generation.reply.failure(error)

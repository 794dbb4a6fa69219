"""What background responses need from an edge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from opentelemetry.trace import SpanContext

from gateway.edge.generation import Generation
from gateway.edge.reply import Reply
from wire.messages import Images, Request


class Admits(Protocol):
    """Admits requests, and goes on with admitted ones: what an Edge does."""

    @property
    def is_open(self) -> bool:
        """Tell whether one more would be admitted."""

    def generate(
        self,
        request: Request,
        reply: Reply,
        *,
        operation: str,
        stream: bool,
        parent: SpanContext | None,
        images: Images | None = None,
    ) -> AbstractAsyncContextManager[Generation]:
        """Admit a request and keep its entry while the block answers it."""

    def resume(
        self, partition: int, request_id: str, reply_of: Callable[[Request], Reply], *, operation: str
    ) -> AbstractAsyncContextManager[Generation]:
        """Go on with a request that was admitted before."""

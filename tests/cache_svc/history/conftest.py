"""A history desk over a real server, and a client that plays the edge."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from cache_svc.history.desk import HistoryDesk
from cache_svc.history.service import serve_streams
from cache_svc.history.settings import HistorySettings
from wire import topics
from wire.bus import Bus
from wire.errors import HeadraceError, by_code
from wire.messages import (
    ChatMessage,
    ConversationRef,
    Failure,
    HistoryCall,
    HistoryReply,
    Job,
    Recalled,
    Request,
    Turn,
    pack_ids,
)

MODEL = "m"


class PlayedEdge:
    """Does what an edge does: calls, jobs, turns. Each call and job has an inbox of its own."""

    def __init__(self, bus: Bus, tenant: str = "") -> None:
        self.bus, self.tenant = bus, tenant

    async def call(self, op: str, **args: Any) -> Any:
        inbox = topics.edge(secrets.token_hex(4))
        call = HistoryCall(call_id="c", edge=inbox, op=op, tenant=self.tenant, args=args, deadline=time.time() + 60)
        await self.bus.send(topics.history(0), call, maxlen=1000)
        reply = await self._first(inbox)
        assert isinstance(reply, HistoryReply)
        if reply.code is not None:
            raise by_code(reply.code)(reply.message, param=reply.param)
        return reply.result

    async def create(self, *texts: str, **metadata: str) -> str:
        root = secrets.token_hex(8)
        items = [{"role": "user", "content": text, "item_id": f"msg_{root}{n:024x}"} for n, text in enumerate(texts)]
        made = await self.call(
            "create_conversation", id=f"conv_{root}{secrets.token_hex(12)}", metadata=metadata, items=items
        )
        conversation_id: str = made["id"]
        return conversation_id

    def ref(self, before: str | None = None, *, store: bool = True) -> ConversationRef:
        root = before.partition("_")[2][:16] if before else secrets.token_hex(8)
        is_conversation = before is not None and before.startswith("conv_")
        return ConversationRef(
            conversation_id=before if is_conversation else None,
            previous_response_id=None if is_conversation else before,
            store=store,
            response_id=f"resp_{root}{secrets.token_hex(12)}",
        )

    async def ask(self, ref: ConversationRef, text: str = "q", *, model: str = MODEL, timeout_s: float = 60.0) -> Job:
        """Admit a request; returns without waiting for the desk."""
        job = Job(
            request_id=secrets.token_hex(8),
            partition=0,
            model=model,
            edge=topics.edge(secrets.token_hex(4)),
            deadline=time.time() + timeout_s,
        )
        request = Request(
            model=model, messages=(ChatMessage(role="user", content=text),), conversation=ref, tenant=self.tenant
        )
        await self.bus.admit(job, {"request": request}, to=topics.history(0), ttl_s=60)
        return job

    async def recalled(self, job: Job) -> Recalled | None:
        """Return what the desk recalled for a job when it has handed it on. Raises the error that it ended with."""
        with anyio.fail_after(60):
            while True:
                waiting = await self.bus.route.call("", "XRANGE", topics.tokenizer(0, job.model), "-", "+")
                if any(job.request_id.encode() in entry[1][1] for entry in waiting):
                    record = await self.bus.record(0, job.request_id, "recalled")
                    found: Recalled | None = record.get("recalled")
                    return found
                if await self.bus.route.call(job.edge, "XLEN", job.edge):
                    failure = await self._first(job.edge)
                    assert isinstance(failure, Failure)
                    raise by_code(failure.code)(failure.message, param=failure.param)
                await anyio.sleep(0.003)

    async def recall(self, before: str, *, model: str = MODEL, store: bool = False) -> Recalled:
        found = await self.recalled(await self.ask(self.ref(before, store=store), model=model))
        assert found is not None
        return found

    def turn(self, job: Job, ref: ConversationRef, text: str = "q", answer: str = "a", **fields: Any) -> Turn:
        ids = fields.pop("ids", None)
        return Turn(
            request_id=job.request_id,
            partition=0,
            model=job.model,
            tenant=self.tenant,
            response_id=ref.response_id,
            conversation=ref,
            input=(ChatMessage(role="user", content=text),),
            output=(ChatMessage(role="assistant", content=answer),),
            prompt_ids=pack_ids(ids) if ids is not None else b"",
            **{"attempt": 0, "created_at": time.time(), **fields},
        )

    async def send(self, turn: Turn) -> None:
        await self.bus.send(topics.history(0), turn, maxlen=1000)

    async def say(self, before: str | None, text: str, answer: str, **fields: Any) -> str:
        """One whole request: asked, answered, stored."""
        ref = self.ref(before)
        job = await self.ask(ref, text)
        await self.recalled(job)
        await self.send(self.turn(job, ref, text, answer, **fields))
        await self.stored(ref.response_id)
        await self.settled()  # it also stands at its place on the list
        return ref.response_id

    async def stored(self, response_id: str) -> dict[str, Any]:
        """Wait until a turn is stored."""
        with anyio.fail_after(60):
            while True:
                try:
                    found: dict[str, Any] = await self.call("get_response", id=response_id)
                    if found["status"] not in ("queued", "in_progress"):
                        return found
                except HeadraceError:
                    pass
                await anyio.sleep(0.003)

    async def settled(self) -> None:
        """Wait until the desks have nothing left to do."""
        stream = topics.history(0)
        with anyio.fail_after(60):
            while await self.bus.route.call(stream, "XLEN", stream):
                await anyio.sleep(0.003)

    async def texts(self, conversation_id: str) -> list[str]:
        page = await self.call("list_items", id=conversation_id, limit=100, order="asc")
        return [item["content"][0]["text"] for item in page["data"]]

    async def _first(self, inbox: str) -> Any:
        with anyio.fail_after(60):
            async for message in self.bus.inbox(inbox):
                return message
        raise AssertionError


@pytest.fixture
def history_settings(request: pytest.FixtureRequest) -> HistorySettings:
    """Settings whose patience a test may set by an indirect parameter."""
    return HistorySettings(
        models=(MODEL,), history_turn_wait_s=getattr(request, "param", 3600.0), history_rewrite_s=0.0
    )


@pytest.fixture
async def edge(bus: Bus, history_settings: HistorySettings) -> AsyncIterator[PlayedEdge]:
    """An edge with two history desks behind it, so that nothing rests on one process's memory."""
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            desk = HistoryDesk(bus, history_settings)
            await tasks.start(serve_streams, bus, history_settings, desk)
        yield PlayedEdge(bus)
        tasks.cancel_scope.cancel()

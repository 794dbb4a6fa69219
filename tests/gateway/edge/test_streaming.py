"""The event stream by itself: what it sends when, and when it gives up."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import anyio
import pytest
from sse_starlette.sse import SendTimeoutError

from gateway.edge.bell import Bell
from gateway.edge.open_body import OPEN_BODY
from gateway.edge.server import listen
from gateway.edge.settings import EdgeSettings
from gateway.edge.streaming import Block, EventStream, Live

pytestmark = pytest.mark.anyio

SCOPE = {"type": "http", "method": "POST"}
Message = MutableMapping[str, Any]


async def stay() -> Message:
    await anyio.sleep_forever()
    raise AssertionError


def stream(blocks: AsyncGenerator[Block, None], *, keep_alive_s: float = 10, send_timeout_s: float = 10) -> EventStream:
    return EventStream(blocks, keep_alive_s=keep_alive_s, send_timeout_s=send_timeout_s, headers={})


async def test_a_send_that_never_ends_is_given_up_and_the_source_closed() -> None:
    closed = anyio.Event()

    async def blocks() -> AsyncGenerator[Block, None]:
        try:
            yield Block(b"data: 1\n\n")
            raise AssertionError("nothing is asked for after a send that failed")
        finally:
            closed.set()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    with anyio.fail_after(60), pytest.raises(SendTimeoutError):
        await stream(blocks(), send_timeout_s=0.01)(SCOPE, stay, send)
    assert closed.is_set()


async def test_the_last_block_ends_the_body_and_no_comment_follows() -> None:
    sent: list[Message] = []

    async def blocks() -> AsyncGenerator[Block, None]:
        yield Block(b"data: 1\n\n")
        yield Block(b"data: [DONE]\n\n", last=True)
        await anyio.sleep(0.05)

    async def send(message: Message) -> None:
        sent.append(message)

    await stream(blocks(), keep_alive_s=0.01)(SCOPE, stay, send)
    assert [(message["body"], message["more_body"]) for message in (sent[1], sent[-1])] == [
        (b"data: 1\n\n", True),
        (b"data: [DONE]\n\n", False),
    ]
    assert {message["body"] for message in sent[2:-1]} <= {b": keep-alive\n\n"}  # between the two, if at all


async def test_a_client_that_leaves_closes_the_source() -> None:
    closed = anyio.Event()

    async def blocks() -> AsyncGenerator[Block, None]:
        try:
            await anyio.sleep_forever()
            yield Block(b"")
        finally:
            closed.set()

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        del message

    await stream(blocks())(SCOPE, leave, send)
    assert closed.is_set()


async def test_comments_fill_silence_again_and_again() -> None:
    sent: list[Any] = []
    heard = anyio.Event()

    async def blocks() -> AsyncGenerator[Block, None]:
        yield Block(b"data: 1\n\n")
        await heard.wait()
        yield Block(b"data: [DONE]\n\n", last=True)

    async def send(message: Message) -> None:
        sent.append(message.get("body"))
        if sent.count(b": keep-alive\n\n") == 3:
            heard.set()

    with anyio.fail_after(60):
        await stream(blocks(), keep_alive_s=0.01)(SCOPE, stay, send)
    assert sent[1] == b"data: 1\n\n"
    assert sent[-1] == b"data: [DONE]\n\n"
    assert set(sent[2:-1]) == {b": keep-alive\n\n"}


async def test_a_question_for_the_headers_alone_begins_no_stream() -> None:
    sent: list[Message] = []

    async def blocks() -> AsyncGenerator[Block, None]:
        raise AssertionError("nobody wants the body")
        yield Block(b"")

    async def send(message: Message) -> None:
        sent.append(message)

    await stream(blocks())({**SCOPE, "method": "HEAD"}, stay, send)
    assert (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
    assert sent[1:] == [{"type": "http.response.body", "body": b"", "more_body": False}]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux")
def test_the_kernel_closes_connections_whose_client_vanished_without_a_fin() -> None:
    with listen(EdgeSettings(port=0, send_timeout_s=30)) as listener, socket.socket() as client:
        client.connect(listener.getsockname())
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            probes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * 3
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + probes <= 30


async def test_a_comment_that_the_last_event_overtakes_is_not_sent() -> None:
    sent: list[Message] = []

    async def blocks() -> AsyncGenerator[Block, None]:
        yield Block(b"data: 1\n\n")
        written._written_at = float("-inf")  # silent for ever: the next look asks for a comment
        written._look(send, tasks)
        yield Block(b"data: [DONE]\n\n", last=True)

    async def send(message: Message) -> None:
        sent.append(message)

    written = stream(blocks())
    async with anyio.create_task_group() as tasks:
        await written.write(SCOPE, send, tasks)
    assert [message["body"] for message in sent[1:]] == [b"data: 1\n\n", b"data: [DONE]\n\n"]


class Body:
    """An open body whose client keeps up, or does not."""

    def __init__(self, sent: list[Any]) -> None:
        self.takes = True
        self._sent = sent

    def write(self, data: bytes) -> None:
        self._sent.append(("at once", data))


async def test_events_leave_with_the_news_while_the_client_keeps_up_and_by_the_task_when_not() -> None:
    bell, sent, news = Bell(), list[Any](), list[bytes]()
    body = Body(sent)

    async def blocks() -> AsyncGenerator[Block, None]:
        while not (news and news[0] == b"end"):
            await bell.next_ring()
            if news and news[0] != b"end":
                yield Block(news.pop(0))
        yield Block(b"end", last=True)

    async def send(message: Message) -> None:
        sent.append(("by the task", message["body"]) if "body" in message else "head")

    def tell(data: bytes) -> None:
        news.append(data)
        bell.ring()

    live = Live(bell, lambda: news.pop(0) if news and news[0] != b"end" else None)
    answer = EventStream(blocks(), keep_alive_s=10, send_timeout_s=10, headers={}, live=live)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, {**SCOPE, OPEN_BODY: body}, stay, send)
            for takes, data in ((True, b"1"), (False, b"2"), (True, b"3"), (True, b"end")):
                await anyio.wait_all_tasks_blocked()
                body.takes = takes
                tell(data)
    assert sent == ["head", ("at once", b"1"), ("by the task", b"2"), ("at once", b"3"), ("by the task", b"end")]
    assert bell.at_once is None

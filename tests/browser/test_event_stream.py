"""The page's reader of Server-Sent Events: every cut of the bytes gives the same events."""

from __future__ import annotations

import pytest

from tests.browser.chat_page import ChatPage

STREAM = (
    "\ufeff: keep-alive\n\n"
    "event: first\ndata: one\n\n"
    "data: two\r\ndata: lines\r\n\r\n"
    "data: with\u2028and\u2029and\u0085and\u000b\r\r"
    "id: 7\nretry: 10\n: comment\n\n"
    "data:no space\n\n"
    "data\n\n"
    'data: {"text": "caf\u00e9 \U0001f600"}\n\n'
    "data: cut off"
)
EVENTS = [
    ["first", "one"],
    ["message", "two\nlines"],
    ["message", "with\u2028and\u2029and\u0085and\u000b"],
    ["message", "no space"],
    ["message", ""],
    ["message", '{"text": "caf\u00e9 \U0001f600"}'],
]

READ = """
    const [text, size] = argument;
    const bytes = new TextEncoder().encode(text);
    const body = new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    const events = [];
    for await (const { event, data } of m.readEvents(body)) events.push([event, data]);
    return events;
"""


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
def test_lines_end_at_cr_lf_and_crlf_only_wherever_the_bytes_are_cut(chat: ChatPage, size: int) -> None:
    assert chat.call("event_stream", READ, [STREAM, size]) == EVENTS


def test_a_stream_that_falls_silent_is_given_up(chat: ChatPage) -> None:
    silent = """
        const body = new ReadableStream({ pull: () => new Promise(() => {}) });
        const events = m.readEvents(body, { idleMs: 20 });
        const patience = new Promise((resolve) => setTimeout(resolve, 5000, "still waiting"));
        return Promise.race([events.next().catch((error) => error.constructor.name), patience]);
    """
    assert chat.call("event_stream", silent) == "StreamIdle"

"""Stopping: the generation ends at the replica, and what came stays."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_cancels_the_generation_and_keeps_what_came(ring: LiveRing, chat: ChatPage, how: str) -> None:
    ring.play(*spoken("Once upon a time"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon a time")
    if how == "button":
        chat.button("Stop").click()
    else:
        chat.page.keyboard.press("Escape")
    expect(chat.notices).to_have_text("You stopped this answer.")
    assert ring.cancelled()[0].request_id == ring.requests[-1].job.request_id
    ring.until_idle()
    expect(chat.answer).to_have_text("Once upon a time")
    expect(chat.bill).to_contain_text("16 out")


def test_after_a_stop_the_conversation_goes_on(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Once upon"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon")
    chat.button("Stop").click()
    expect(chat.button("Send")).to_be_visible()
    ring.play(*spoken("The end."))
    chat.ask("Finish it")
    prompt = ring.prompt_text()
    assert "Tell me a story" in prompt
    assert "Once upon" in prompt
    expect(chat.turns).to_have_count(2)
    chat.page.reload()
    expect(chat.turns).to_have_count(2)


def test_leaving_a_running_conversation_does_not_stop_it(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("Slowly "), *spoken("but surely.", after=gate))
    chat.send("Work on this")
    expect(chat.answer).to_have_text("Slowly")
    chat.button("New chat").first.click()
    expect(chat.turns).to_have_count(0)
    ring.open(gate)
    chat.conversations.first.click()
    chat.until_done()
    expect(chat.turns).to_have_count(1)
    expect(chat.answer).to_have_text("Slowly but surely.")


def test_deleting_a_conversation_stops_its_answer(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Once upon"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon")
    item = chat.page.locator(".side-item").first
    item.hover()
    chat.button("Delete", item).click()
    chat.button("Delete", chat.page.get_by_role("dialog")).click()
    expect(chat.conversations).to_have_count(0)
    assert ring.cancelled()[0].request_id == ring.requests[-1].job.request_id
    ring.until_idle()
    assert ring.ended_by("client_gone") == 1, "it ran into its deadline"
    expect(chat.turns).to_have_count(0)
    expect(chat.banner).to_be_empty()

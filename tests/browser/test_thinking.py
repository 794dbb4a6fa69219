"""While it thinks the page offers to have the answer now."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken, thought
from wire.messages import EndReasoning


def test_the_user_ends_thinking_and_gets_the_answer(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*thought("Let me see."), *spoken("Here it is.", after=gate))
    chat.send("Think about this")
    enough = chat.button("Answer now", chat.newest)
    expect(enough).to_be_visible()
    enough.click()
    asked = ring.heard(EndReasoning)
    assert [message.request_id for message in asked] == [ring.requests[-1].job.request_id]
    expect(enough).to_be_disabled()
    ring.open(gate)
    chat.until_done()
    expect(chat.answer).to_have_text("Here it is.")
    expect(enough).to_be_hidden()
    assert chat.faults == []


def test_an_answer_without_thinking_offers_nothing(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("Slowly "), *spoken("but surely.", after=gate))
    chat.send("Work on this")
    expect(chat.answer).to_have_text("Slowly")
    expect(chat.button("Answer now", chat.newest)).to_be_hidden()
    ring.open(gate)
    chat.until_done()


def test_thinking_that_was_over_already_is_no_trouble(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*thought("Hm."), *spoken("Done.", after=gate))
    chat.send("Quick")
    chat.page.route(
        "**/v1/requests/*/control", lambda route: route.fulfill(status=404, json={"error": {"message": "gone"}})
    )
    chat.button("Answer now", chat.newest).click()
    ring.open(gate)
    chat.until_done()
    expect(chat.answer).to_have_text("Done.")
    expect(chat.notices).to_have_count(0)

"""Stopping: the generation ends at the replica, and what came stays."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

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


def test_what_is_stopped_before_its_first_word_leaves_no_trace(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("Never said.", after=gate))
    chat.send("Never mind")
    expect(chat.conversations).to_have_text(["Never mind"])
    with chat.page.expect_response("**/v1/responses/*/cancel"):
        chat.button("Stop").click()
    expect(chat.notices).to_have_text("You stopped this answer.")
    ring.play(*spoken("Yes."))
    chat.ask("Are you there?")
    assert "Never mind" not in ring.prompt_text()


def test_a_stop_that_comes_before_the_answer_has_a_name_is_carried_out(ring: LiveRing, chat: ChatPage) -> None:
    held: list[Route] = []
    chat.page.route("**/v1/responses", lambda route: held.append(route))
    ring.play(*spoken("Once upon a time"), finish=None)
    with chat.page.expect_request("**/v1/responses"):
        chat.send("Tell me a story")
    chat.button("Stop").click()
    expect(chat.notices).to_have_text("You stopped this answer.")
    with chat.page.expect_response("**/v1/responses/*/cancel"):
        held[0].continue_()
    ring.until_idle()
    expect(chat.button("Send")).to_be_visible()


def test_a_stopped_answer_is_taken_back_before_the_server_knows_of_the_stop(ring: LiveRing, chat: ChatPage) -> None:
    held: list[Route] = []
    chat.page.route("**/v1/responses/*/cancel", lambda route: held.append(route))
    ring.play(*spoken("Once upon"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon")
    with chat.page.expect_request("**/v1/responses/*/cancel"):
        chat.button("Stop").click()
    ring.play(*spoken("There was a mill."))
    chat.button("Answer again").click()
    expect(chat.answer).to_have_text("There was a mill.")
    chat.until_done()
    assert "Once upon" not in ring.prompt_text()
    held[0].continue_()
    chat.page.reload()
    expect(chat.answer).to_have_text("There was a mill.")
    expect(chat.turns).to_have_count(1)


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
    assert ring.ended_by("request_cancelled") == 1, "it ran into its deadline"
    expect(chat.turns).to_have_count(0)
    expect(chat.banner).to_be_empty()

"""An answer that is made while its tab is reloaded, closed or doubled: the server goes on, the page finds it."""

from __future__ import annotations

import json
from collections.abc import Callable

from playwright.sync_api import Route, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OpenPage
from tests.browser.live_ring import LiveRing, spoken, thought
from wire.errors import InternalError


def until_named(chat: ChatPage) -> None:
    """Wait until the tab has noted which answer is on its way."""
    chat.page.wait_for_function("() => sessionStorage.getItem('headrace.pending')?.includes('resp_')")


def test_a_reload_in_mid_answer_shows_all_of_it_and_how_it_goes_on(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*thought("Let me see."), *spoken("First half, "), *spoken("second half.", after=gate))
    chat.send("A question")
    expect(chat.answer).to_have_text("First half,")
    chat.page.reload()
    expect(chat.newest.locator(".said")).to_have_text("A question")
    expect(chat.answer).to_have_text("First half,")
    expect(chat.button("Stop")).to_be_visible()
    ring.open(gate)
    chat.until_done()
    expect(chat.answer).to_have_text("First half, second half.")
    expect(chat.newest.locator(".reasoning summary")).to_have_text("Thought for 11 tokens")
    expect(chat.turns).to_have_count(1)
    assert len(ring.requests) == 1
    bill = chat.bill.inner_text()
    chat.page.reload()
    expect(chat.bill).to_have_text(bill, use_inner_text=True)
    expect(chat.button("Send")).to_be_visible()


def test_a_reload_before_the_first_word_loses_nothing(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("At last.", after=gate))
    chat.send("A hard question")
    until_named(chat)
    chat.page.reload()
    expect(chat.newest.locator(".said")).to_have_text("A hard question")
    ring.open(gate)
    chat.until_done()
    expect(chat.answer).to_have_text("At last.")


def test_an_answer_that_ended_while_its_tab_was_away_is_there_once(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("Half "), *spoken("and whole.", after=gate))
    chat.send("A question")
    expect(chat.answer).to_have_text("Half")
    place = chat.page.url
    chat.page.goto("about:blank")
    ring.open(gate)
    ring.until_idle()
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url))
    chat.page.goto(place)
    chat.until_done()
    expect(chat.answer).to_have_text("Half and whole.")
    expect(chat.turns).to_have_count(1)
    assert not any("stream=true" in url for url in asked)  # it is taken from what is stored


def test_a_question_whose_answer_failed_while_its_tab_was_away_is_there_with_what_went_wrong(
    ring: LiveRing, chat: ChatPage
) -> None:
    gate = ring.gate()
    ring.play(before_end=gate, error=InternalError("the engine failed"))
    chat.send("A question")
    until_named(chat)
    place = chat.page.url
    chat.page.goto("about:blank")
    ring.open(gate)
    ring.until_idle()
    chat.page.goto(place)
    expect(chat.newest.locator(".said")).to_have_text("A question")
    expect(chat.notices).to_contain_text("Something broke on the server")


def test_after_a_reload_an_answer_can_be_stopped(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Once upon a time"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon a time")
    chat.page.reload()
    chat.button("Stop").click()
    expect(chat.notices).to_have_text("You stopped this answer.")
    assert ring.cancelled()[0].request_id == ring.requests[-1].job.request_id
    expect(chat.bill).to_contain_text("16 out")
    expect(chat.answer).to_have_text("Once upon a time")
    chat.page.reload()
    expect(chat.notices).to_have_text("You stopped this answer.")
    expect(chat.turns).to_have_count(1)


def test_an_answer_whose_tab_was_closed_is_there_when_the_conversation_is_opened_again(
    ring: LiveRing, chat: ChatPage, open_page: OpenPage
) -> None:
    gate = ring.gate()
    ring.play(*spoken("Half "), *spoken("and whole.", after=gate))
    chat.send("A question")
    expect(chat.answer).to_have_text("Half")
    other = open_page(chat.page.url, beside=chat)
    chat.page.close()
    ring.open(gate)
    ring.until_idle()
    other.page.reload()
    other.until_done()
    expect(other.answer).to_have_text("Half and whole.")
    assert ring.cancelled(0) == []


def test_a_tab_that_was_doubled_shows_the_same_answer_and_stops_it_for_both(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Once upon a time"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon a time")
    with chat.page.context.expect_page() as doubled:
        chat.page.evaluate("() => void window.open(location.href)")  # as doubling a tab does, this copies its notes
    other = ChatPage(doubled.value, chat.page.url)
    expect(other.answer).to_have_text("Once upon a time")
    other.button("Stop").click()
    for page in (other, chat):
        expect(page.notices).to_have_text("You stopped this answer.")
        expect(page.button("Send")).to_be_visible()
        expect(page.turns).to_have_count(1)
    assert other.faults == []


def test_an_answer_is_followed_in_other_tabs_and_browsers_as_it_is_made(
    ring: LiveRing, chat: ChatPage, open_page: OpenPage
) -> None:
    ring.play(*spoken("First."))
    chat.ask("One")
    tab = open_page(chat.page.url, beside=chat)
    tab.until_done()
    gate = ring.gate()
    ring.play(*spoken("Half "), *spoken("and whole.", after=gate))
    chat.send("Two")
    expect(tab.answer).to_have_text("Half")
    browser = open_page(chat.page.url)
    for page in (tab, browser):
        expect(page.newest.locator(".said")).to_have_text("Two")
        expect(page.answer).to_have_text("Half")
        expect(page.button("Stop")).to_be_visible()
    ring.open(gate)
    for page in (chat, tab, browser):
        page.until_done()
        expect(page.answer).to_have_text("Half and whole.")
        expect(page.turns).to_have_count(2)
    assert len(ring.requests) == 2


def test_an_answer_that_nobody_reads_any_more_ends_and_says_so(
    live: Callable[..., LiveRing], open_page: OpenPage
) -> None:
    ring = live(background_lease_s=1.0)
    chat = open_page(ring.url)

    def of_little_patience(route: Route) -> None:
        asked = dict(route.request.post_data_json or {})
        assert asked["stream_options"]["unread_limit_s"] >= 60
        route.continue_(post_data=json.dumps(asked | {"stream_options": {"unread_limit_s": 1}}))

    chat.page.route("**/v1/responses", of_little_patience)
    ring.play(*spoken("Once upon a time"), finish=None)
    chat.send("Tell me a story")
    expect(chat.answer).to_have_text("Once upon a time")
    place = chat.page.url
    chat.page.goto("about:blank")
    ring.until_idle()
    chat.page.goto(place)
    expect(chat.notices).to_contain_text("Nobody was reading any more")
    expect(chat.answer).to_have_text("Once upon a time")


def test_an_answer_that_is_taken_back_elsewhere_leaves_those_who_follow_it(
    ring: LiveRing, chat: ChatPage, open_page: OpenPage
) -> None:
    ring.play(*spoken("First."))
    chat.ask("One")
    ring.play(*spoken("Once upon a time"), finish=None)
    chat.send("Two")
    expect(chat.answer).to_have_text("Once upon a time")
    other = open_page(chat.page.url)
    expect(other.answer).to_have_text("Once upon a time")
    expect(other.turns).to_have_count(2)
    ring.portal.call(ring.ring.http.delete, f"/v1/responses/{ring.requests[-1].job.request_id}")
    expect(other.turns).to_have_count(1)
    expect(other.button("Send")).to_be_visible()
    expect(other.answer).to_have_text("First.")

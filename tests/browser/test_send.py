"""Sending a message and seeing the answer come."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken, thought


def test_an_answer_appears_under_its_question_with_a_bill(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("It is **blue**."))
    chat.ask("Which colour has the sky?")
    expect(chat.newest.locator(".said")).to_have_text("Which colour has the sky?")
    expect(chat.answer.locator("strong")).to_have_text("blue")
    parts = chat.bill.locator("span[title]").all_inner_texts()
    assert re.fullmatch(r"\d+ in", parts[0])
    assert parts[1:3] == ["0 cached", "16 out"]
    assert re.fullmatch(r"first token after [\d.]+ (ms|s)", parts[3])


def test_a_message_may_be_sent_before_the_page_knows_a_model(ring: LiveRing, chat: ChatPage) -> None:
    held: list[Route] = []
    chat.page.route("**/v1/models", lambda route: held.append(route))
    chat.page.reload()
    ring.play(*spoken("Yes."))
    chat.send("Are you there?")
    expect(chat.conversations).to_have_text(["Are you there?"])
    chat.button("Stop").click()
    expect(chat.notices).to_have_text("You stopped this answer.")
    chat.send("And now?")
    expect(chat.turns).to_have_count(2)
    held[0].continue_()
    chat.until_done()
    expect(chat.answer).to_have_text("Yes.")
    assert len(ring.requests) == 1


def test_the_bill_opens_to_show_where_the_time_went(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Yes."))
    chat.ask("Well?")
    # By its content, so that who speaks to the page can say what is seen.
    expect(chat.bill).to_have_accessible_name(re.compile(r"^Cost of this answer: \d+ in\W+0 cached\W+\d+ out\W+first"))
    assert chat.bill.get_attribute("aria-label") is None
    chat.bill.click()
    expect(chat.newest.locator(".race-legend dt")).to_have_text(["Queue", "Tokenize", "Match", "Prefill", "Decode"])


def test_the_bill_tells_what_came_from_another_replica_only_where_something_did(chat: ChatPage) -> None:
    show = "const node = m.bill(argument); node.querySelector('button').click(); return node.textContent"
    told = {"cached_tokens": 800, "fetched_tokens": 768, "fetch_ms": 12.0, "prefill_ms": 3}
    text = chat.call("bill", show, {"input_tokens": 900, "output_tokens": 5, "headrace": told})
    assert "800 cached768 fetched" in text and "Fetch12 ms" in text
    told |= {"fetched_tokens": 0, "fetch_ms": 0.0}
    text = chat.call("bill", show, {"input_tokens": 900, "output_tokens": 5, "headrace": told})
    assert "fetched" not in text and "Fetch" not in text


def test_the_bill_tells_the_energy_where_it_is_metered(chat: ChatPage) -> None:
    show = "return m.billParts(argument).map(([text]) => text).filter((text) => text.endsWith('J'))"
    for joules, said in ((None, []), (0.0421, ["0.042 J"]), (37.3, ["37 J"]), (1250.0, ["1.25 kJ"])):
        told = {} if joules is None else {"energy_j": joules}
        assert chat.call("bill", show, {"input_tokens": 9, "output_tokens": 5, "headrace": told}) == said


def test_text_is_on_screen_before_the_answer_has_ended(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("First half, "), *spoken("second half.", after=gate))
    chat.send("Go on")
    expect(chat.answer).to_have_text("First half,")
    expect(chat.newest.locator(".answer")).to_have_attribute("aria-busy", "true")
    ring.open(gate)
    expect(chat.answer).to_have_text("First half, second half.")
    chat.until_done()


def test_shift_enter_breaks_the_line_and_an_empty_message_is_not_sent(ring: LiveRing, chat: ChatPage) -> None:
    chat.message.press("Enter")
    chat.message.fill("   ")
    chat.message.press("Enter")
    expect(chat.turns).to_have_count(0)
    chat.message.fill("one")
    low = chat.message.bounding_box()
    chat.message.press("Shift+Enter")
    chat.message.press_sequentially("two")
    high = chat.message.bounding_box()
    assert low is not None and high is not None and high["height"] > low["height"], "the box grows with its text"
    chat.message.press("Enter")
    expect(chat.newest.locator(".said")).to_have_text("one\ntwo", use_inner_text=True)
    chat.until_done()
    assert "one\ntwo" in ring.prompt_text()


def test_settings_go_out_with_the_next_message_and_survive_a_reload(ring: LiveRing, chat: ChatPage) -> None:
    chat.button("Settings").click()
    chat.page.get_by_label("Thinking").select_option("low")
    chat.page.get_by_label("Temperature").fill("1.3")
    chat.page.get_by_label("Longest answer").fill("5")
    chat.page.get_by_label("System prompt").fill("Answer like a miller.")
    chat.button("Done").click()
    chat.page.reload()
    ring.play(*spoken("A very long answer"))
    chat.send("Hello")
    expect(chat.notices).to_have_text("The answer reached its token limit and ends here.")
    expect(chat.answer).to_have_text("A ver")
    request = ring.requests[-1].request
    assert (request.model, request.effort) == ("tiny", "low")
    assert (request.sampling.temperature, request.sampling.max_tokens) == (1.3, 5)
    assert request.instructions == "Answer like a miller."


def test_settings_that_are_not_chosen_are_not_sent(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("Hello")
    request = ring.requests[-1].request
    assert (request.effort, request.sampling.max_tokens, request.instructions) == (None, None, None)
    assert request.sampling.temperature == 1.0, "the model's own, which advises nothing"


def test_thinking_is_folded_away_and_counted(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*thought("Let me see."), *spoken("Forty-two.", after=gate))
    chat.send("What is it?")
    block = chat.newest.locator(".reasoning")
    expect(block.locator("summary")).to_have_text("Thinking…")
    expect(block.locator(".reasoning-body")).to_be_hidden()
    block.locator("summary").click()
    expect(block.locator(".reasoning-body")).to_have_text("Let me see.")
    ring.open(gate)
    chat.until_done()
    expect(block.locator("summary")).to_have_text("Thought for 11 tokens")
    expect(chat.answer).to_have_text("Forty-two.")


def test_an_answer_can_be_copied(ring: LiveRing, chat: ChatPage) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ring.play(*spoken("Take *this*."))
    chat.ask("Give")
    with chat.soon_shown("Copied"):
        chat.button("Copy answer").click()
    assert chat.page.evaluate("() => navigator.clipboard.readText()") == "Take *this*."


def test_a_suggestion_fills_the_message_box(chat: ChatPage) -> None:
    expect(chat.page.locator(".greeting-model")).to_contain_text("tiny")
    chat.page.locator(".suggestion").first.click()
    expect(chat.message).to_be_focused()
    expect(chat.message).to_have_value(re.compile(r"sky"))


def test_a_very_long_message_is_folded_and_opens(ring: LiveRing, chat: ChatPage) -> None:
    chat.send("word " * 40_000)  # too long for the model, too; what was written is not lost by that
    said = chat.newest.locator(".said")
    expect(chat.notices).to_be_in_viewport()
    folded = said.bounding_box()
    assert len(said.inner_text()) <= 3_000, "what is folded away is not laid out"
    chat.button("Show all").click()
    opened = said.bounding_box()
    assert said.inner_text().count("word") == 40_000
    assert folded is not None and opened is not None and opened["height"] > 20 * folded["height"]
    chat.button("Show less").click()
    assert said.bounding_box() is not None and said.bounding_box()["height"] == folded["height"]  # type: ignore[index]
    expect(chat.button("Edit message")).to_have_count(0)  # a box with so much takes seconds for every key

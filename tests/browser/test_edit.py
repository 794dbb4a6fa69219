"""A message is written anew: what it led to is taken back, here and on the server."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken


def test_an_edited_message_replaces_itself_and_all_that_came_after(ring: LiveRing, chat: ChatPage) -> None:
    for word in ("first", "second", "third"):
        ring.play(*spoken(f"Answer to the {word}."))
        chat.ask(f"The {word} question")
    second = chat.turns.nth(1)
    second.hover()
    chat.button("Edit message", second).click()
    expect(second.locator(".said-note")).to_contain_text("the message after it")
    field = chat.page.get_by_label("Edit message", exact=True).and_(chat.page.locator("textarea"))
    expect(field).to_be_focused()
    expect(field).to_have_value("The second question")
    ring.play(*spoken("Something else."))
    field.fill("Another question")
    field.press("Enter")
    expect(chat.newest.locator(".said")).to_have_text("Another question")
    chat.until_done()
    expect(chat.turns).to_have_count(2)
    prompt = ring.prompt_text()
    assert "The first question" in prompt
    assert "second" not in prompt
    assert "third" not in prompt
    chat.page.reload()
    expect(chat.turns).to_have_count(2)
    expect(chat.answer).to_have_text("Something else.")


def test_the_up_key_edits_the_newest_message_and_escape_leaves_it(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Yes."))
    chat.ask("Is it so?")
    chat.message.press("ArrowUp")
    field = chat.newest.locator("textarea")
    expect(field).to_be_focused()
    field.fill("Nonsense")
    field.press("Escape")
    expect(chat.newest.locator(".said")).to_have_text("Is it so?")
    expect(chat.button("Edit message", chat.newest)).to_be_focused()
    chat.message.fill("Some words")
    chat.message.press("ArrowUp")
    expect(chat.newest.locator("textarea")).to_have_count(0)


def test_an_edit_that_the_server_refuses_keeps_the_words(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Yes."))
    chat.ask("Is it so?")
    chat.page.route(
        "**/v1/responses/*", lambda route: route.fulfill(status=500, json={"error": {"code": "internal_error"}})
    )
    chat.message.press("ArrowUp")
    field = chat.newest.locator("textarea")
    field.fill("Is it not?")
    field.press("Enter")
    expect(chat.banner).to_contain_text("Something broke")
    expect(field).to_be_enabled()
    expect(field).to_have_value("Is it not?")


def test_conversations_made_over_the_api_can_be_edited_too(ring: LiveRing, chat: ChatPage) -> None:
    items = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]
    chat.page.goto(f"{chat.url}/#/c/{ring.converse(items)}")
    ring.play(*spoken("Good evening."))
    chat.newest.hover()
    chat.button("Edit message", chat.newest).click()
    chat.newest.locator("textarea").fill("Good evening")
    chat.button("Send", chat.newest).click()
    expect(chat.answer).to_have_text("Good evening.")
    chat.until_done()
    assert "Good day." not in ring.prompt_text()

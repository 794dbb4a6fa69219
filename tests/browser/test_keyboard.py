"""The whole page without a mouse."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken


def _tab_to(chat: ChatPage, name: str, *, back: bool = False, most: int = 30) -> None:
    """Press Tab until the element of this name has the focus, which must be visible."""
    focused = """() => {
        const node = document.activeElement;
        return node.ariaLabel || node.labels?.[0]?.textContent.trim() || node.textContent.trim();
    }"""
    for _ in range(most):
        chat.page.keyboard.press("Shift+Tab" if back else "Tab")
        if chat.page.evaluate(focused).startswith(name):
            assert chat.page.evaluate("() => document.activeElement.matches(':focus-visible')")
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def test_the_message_box_has_the_focus_at_first(chat: ChatPage) -> None:
    expect(chat.message).to_be_focused()


def test_everything_can_be_done_by_keyboard(ring: LiveRing, chat: ChatPage) -> None:
    keyboard = chat.page.keyboard
    ring.play(*spoken("Of course."))
    keyboard.type("Can I?")
    keyboard.press("Enter")
    chat.until_done()
    expect(chat.message).to_be_focused()

    _tab_to(chat, "Settings", back=True)
    keyboard.press("Enter")
    expect(chat.page.get_by_role("dialog", name="Settings")).to_be_visible()
    _tab_to(chat, "Longest answer")
    keyboard.type("7")
    keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)

    keyboard.press("Control+k")
    expect(chat.turns).to_have_count(0)
    expect(chat.message).to_be_focused()
    keyboard.type("Short")
    keyboard.press("Enter")
    expect(chat.notices).to_contain_text("token limit")
    assert ring.requests[-1].request.sampling.max_tokens == 7

    _tab_to(chat, "Can I?", back=True)
    _tab_to(chat, "Rename")
    keyboard.press("Enter")
    keyboard.type("Permission")
    keyboard.press("Enter")
    expect(chat.conversations.first).to_have_text("Permission")
    _tab_to(chat, "Delete")
    keyboard.press("Enter")
    _tab_to(chat, "Delete", most=3)
    keyboard.press("Enter")
    expect(chat.conversations).to_have_count(1)


def test_a_list_that_is_drawn_anew_leaves_the_focus_on_the_same_button(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Of course."))
    chat.send("Can I?")
    chat.until_done()
    _tab_to(chat, "Rename", back=True)
    chat.page.evaluate("""() => {
        document.activeElement.dataset.before = "";
        new BroadcastChannel("headrace").postMessage({});  // as another tab tells of a change
    }""")
    expect(chat.page.locator("[data-before]")).to_have_count(0)
    assert chat.page.evaluate("() => document.activeElement.ariaLabel") == "Rename"


def test_escape_stops_an_answer(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Never ending"), finish=None)
    chat.send("Go")
    expect(chat.answer).to_have_text("Never ending")
    chat.page.keyboard.press("Escape")
    ring.cancelled()
    expect(chat.message).to_be_focused()


def test_screen_readers_hear_the_start_and_the_end(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("Well."), before_end=gate)
    news = chat.page.locator("#announcer")
    expect(news).to_have_attribute("aria-live", "polite")
    chat.send("Speak")
    expect(news).to_have_text("The model is answering.")
    ring.open(gate)
    expect(news).to_have_text("The answer is complete.")


def test_the_skip_link_leads_to_the_message_box(chat: ChatPage) -> None:
    _tab_to(chat, "Skip to the message box", back=True)
    expect(chat.page.get_by_role("link", name="Skip to the message box")).to_be_focused()
    expect(chat.page.get_by_role("link", name="Skip to the message box")).to_be_in_viewport()

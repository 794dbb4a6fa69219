"""Look and feel: phone width, dark mode, nothing jumps, scrolling belongs to the reader."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OpenPage
from tests.browser.live_ring import LiveRing, spoken, thought

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
GAP = "\\qquad"
WIDE = f"""{"x" * 300}

```
{"y" * 300}
```

| {" | ".join(f"column {number}" for number in range(12))} |
|{"---|" * 12}
| {" | ".join("value" for _ in range(12))} |

https://example.com/{"z" * 300}

In a line $x{GAP * 14} y$ or $$x{GAP * 14} y$$
"""
OVERFLOW = """() => {
    const width = document.documentElement.clientWidth;
    const inside = (node) => node.closest("pre, .table-frame, .formula > *, .side, .flow, .visually-hidden, .sprite");
    return [...document.querySelectorAll("body *")]
        .filter((node) => !inside(node) && node.getBoundingClientRect().right > width + 0.5 && node.checkVisibility())
        .map((node) => node.tagName + "." + node.className);
}"""


# Contrast as WCAG 2 has it, of a text with the page's ground, at nine moments of what moves it.
CONTRASTS = """(selector) => {
    const node = document.querySelector(selector);
    const numbers = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const linear = (value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const light = (rgb) => rgb.map(linear).reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = numbers(getComputedStyle(document.documentElement).backgroundColor);
    const [moving] = node.getAnimations();
    moving.pause();
    return [...Array(9).keys()].map((step) => {
        moving.currentTime = (step / 8) * moving.effect.getTiming().duration;
        const { color, opacity } = getComputedStyle(node);
        const shown = numbers(color).map((value, i) => value * opacity + ground[i] * (1 - opacity));
        const [dark, bright] = [light(shown), light(ground)].sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    });
}"""


@pytest.mark.parametrize("width", [390, 320])
def test_nothing_scrolls_sideways_on_a_phone(ring: LiveRing, open_page: OpenPage, width: int) -> None:
    """320 is also what a small window at 200 % and more has."""
    chat = open_page(ring.url, **{**PHONE, "viewport": {"width": width, "height": 844}})
    chat.page.locator("#model-name").evaluate("(name) => (name.textContent = 'a-model-with-a-long-name-instruct-8b')")
    assert chat.page.evaluate(OVERFLOW) == []
    ring.play(*spoken(WIDE), per_chunk=64)
    chat.ask("x" * 300)
    expect(chat.answer.locator("math")).to_have_count(2)
    assert chat.page.evaluate(OVERFLOW) == []
    assert chat.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert chat.page.evaluate(
        "() => { const s = document.querySelector('#scroller'); return s.scrollWidth <= s.clientWidth }"
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_long_answers_out_of_sight_make_nothing_wider(ring: LiveRing, open_page: OpenPage, width: int) -> None:
    """The height of what is not laid out is guessed from its length; its width is not."""
    said = {"user": "Tell me.", "assistant": "A long line of it. " * 500}
    conversation = ring.converse([{"role": role, "content": text} for _ in range(10) for role, text in said.items()])
    chat = open_page(ring.url, viewport={"width": width, "height": 800})
    chat.page.goto(f"{ring.url}/#/c/{conversation}")
    expect(chat.newest.locator(".answer-text")).to_be_visible()
    expect(chat.turns).to_have_count(10)
    assert chat.page.evaluate(OVERFLOW) == []
    inside = "(turn) => turn.getBoundingClientRect().width < turn.parentElement.getBoundingClientRect().width"
    assert chat.newest.evaluate(inside)


def test_a_new_chat_begins_at_its_top_on_a_small_screen(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url, viewport={"width": 390, "height": 480})
    heading = chat.page.locator(".greeting h2")
    expect(heading).to_be_in_viewport(ratio=1)
    chat.page.locator("#scroller").press("End")
    expect(heading).not_to_be_in_viewport()
    chat.page.locator("#scroller").press("Home")
    expect(heading).to_be_in_viewport(ratio=1)
    expect(chat.button("Latest")).to_be_hidden()


def test_letters_of_twice_the_size_leave_everything_in_its_box(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url)
    chat.page.evaluate("() => (document.documentElement.style.fontSize = '200%')")
    box, send = chat.page.locator("#composer").bounding_box(), chat.button("Send").bounding_box()
    assert box is not None and send is not None and send["x"] + send["width"] <= box["x"] + box["width"]
    expect(chat.page.locator("#model-name")).to_be_visible()
    assert chat.page.locator("#model-name").evaluate("(name) => name.scrollWidth <= name.clientWidth")


def test_with_colours_of_the_system_lines_tell_what_grounds_do(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url, forced_colors="active")
    chat.ask("One")
    chat.button("New chat").first.click()
    chat.ask("Two")
    current, other = chat.page.locator(".side-item").all()
    expect(current).to_have_css("outline-style", "solid")
    expect(other).to_have_css("outline-style", "none")
    for shape in (chat.newest.locator(".said"), chat.button("Send")):
        expect(shape).to_have_css("border-style", "solid")
    chat.bill.click()
    expect(chat.newest.locator(".race .stretch").first).to_have_css("forced-color-adjust", "none")


def test_the_side_list_is_a_drawer_on_a_phone(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url, **PHONE)
    chat.ask("A question")
    link = chat.page.locator(".side-item a")
    expect(link).not_to_be_in_viewport()
    chat.button("Conversations").tap()
    expect(link).to_be_in_viewport()
    expect(chat.page.locator("main")).to_have_attribute("inert", "")
    chat.page.keyboard.press("Escape")
    expect(link).not_to_be_in_viewport()
    chat.button("Conversations").tap()
    link.tap()
    expect(link).not_to_be_in_viewport()


def test_a_finger_that_cannot_hover_sees_what_can_be_done_about_a_message(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url, **PHONE)
    chat.ask("A question")
    expect(chat.newest.locator(".said-actions")).to_have_css("opacity", "1")


def test_the_way_out_of_the_settings_is_in_sight_on_a_low_screen(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url, viewport={"width": 900, "height": 420})
    chat.button("Settings").click()
    chat.page.get_by_text("More about sampling").click()
    expect(chat.button("Done")).to_be_in_viewport(ratio=1)


def test_dark_follows_the_system_until_switched_and_the_switch_is_kept(ring: LiveRing, open_page: OpenPage) -> None:
    dark = open_page(ring.url, color_scheme="dark")
    assert _brightness(dark) < 60
    dark.button("Switch between light and dark").click()
    assert _brightness(dark) > 200
    dark.page.reload()
    assert _brightness(dark) > 200
    dark.button("Switch between light and dark").click()
    assert _brightness(dark) < 60
    light = open_page(ring.url, color_scheme="light")
    assert _brightness(light) > 200
    light.page.emulate_media(color_scheme="dark")
    assert _brightness(light) < 60


def test_nothing_jumps_while_an_answer_comes_and_ends(ring: LiveRing, chat: ChatPage) -> None:
    chat.page.evaluate("""() => {
        window.shifts = [];
        new PerformanceObserver((list) => window.shifts.push(...list.getEntries())).observe({ type: "layout-shift" });
    }""")
    gate, end = ring.gate(), ring.gate()
    ring.play(*spoken("One line.\n\n"), *spoken("```\ncode\n```\n\nAnd more.", after=gate), before_end=end)
    chat.send("Write")
    expect(chat.answer).to_have_text("One line.")
    before = chat.newest.locator(".said").bounding_box()
    ring.open(gate)
    expect(chat.answer).to_contain_text("And more.")
    running = chat.newest.bounding_box()
    ring.open(end)
    chat.until_done()
    assert chat.newest.bounding_box() == running, "the bill comes into a place that was kept for it"
    assert chat.newest.locator(".said").bounding_box() == before
    shift = chat.page.evaluate(
        "() => window.shifts.filter((entry) => !entry.hadRecentInput).reduce((sum, entry) => sum + entry.value, 0)"
    )
    assert shift < 0.01


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_that_the_model_thinks_can_be_read_at_every_moment(ring: LiveRing, open_page: OpenPage, scheme: str) -> None:
    chat = open_page(ring.url, color_scheme=scheme)
    gate = ring.gate()
    ring.play(*thought("A thought."), *spoken("Done.", after=gate))
    chat.send("Think")
    expect(chat.newest.locator(".reasoning.running")).to_be_visible()
    ratios = chat.page.evaluate(CONTRASTS, ".reasoning-label")
    ring.open(gate)
    assert len(ratios) == 9 and min(ratios) >= 4.5, ratios


def test_on_paper_stands_the_whole_conversation_alone(ring: LiveRing, open_page: OpenPage) -> None:
    chat = open_page(ring.url, color_scheme="dark")
    lines = "".join(f"Line {number}.\n\n" for number in range(60))
    said = ("Long words. " * 300, f"{lines}```\n{'y' * 300}\n```", "More", lines)
    items = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, said, strict=True)]
    chat.page.goto(f"{chat.url}/#/c/{ring.converse(items)}")
    expect(chat.turns).to_have_count(2)
    chat.page.emulate_media(media="print")
    assert _brightness(chat) > 200
    for part in (chat.message, chat.button("New chat").first, chat.button("Copy answer").first):
        expect(part).to_be_hidden()
    thread = chat.page.locator("#thread").evaluate("(thread) => thread.getBoundingClientRect().height")
    assert 4_000 < thread <= chat.page.evaluate("() => document.documentElement.scrollHeight")
    for box in (chat.turns.first.locator(".said"), chat.turns.first.locator("pre")):
        assert box.evaluate("(box) => box.scrollHeight <= box.clientHeight && box.scrollWidth <= box.clientWidth")
    assert chat.turns.first.locator(".said").inner_text().count("Long words.") == 300


@pytest.mark.parametrize("how", ["wheel", "keyboard"])
def test_the_page_follows_the_answer_only_for_a_reader_at_the_bottom(ring: LiveRing, chat: ChatPage, how: str) -> None:
    gate, second = ring.gate(), ring.gate()
    lines = "".join(f"Line {number}.\n\n" for number in range(30))
    ring.play(*spoken(lines), *spoken(lines, after=gate), *spoken("The end.", after=second))
    chat.send("Write a lot")
    expect(chat.answer).to_contain_text("Line 29.")
    _until_at_bottom(chat)
    if how == "wheel":
        chat.page.locator("#scroller").hover()
        chat.page.mouse.wheel(0, -600)
    else:
        chat.page.locator("#scroller").press("Home")
    expect(chat.button("Latest")).to_be_visible()
    place = _settled_place(chat)
    ring.open(gate)
    expect(chat.answer.locator("p")).to_have_count(60)
    assert chat.page.evaluate("() => document.querySelector('#scroller').scrollTop") == place
    chat.button("Latest").click()
    _until_at_bottom(chat)
    ring.open(second)
    chat.until_done()
    _until_at_bottom(chat)


def test_turns_that_are_far_off_cost_no_layout_and_come_back(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("".join(f"Line {number}.\n\n" for number in range(60))), per_chunk=64)
    for word in ("One", "Two", "Three"):
        chat.ask(word)
    first = chat.turns.first.locator("p").first
    is_drawn = "(node) => node.checkVisibility({ contentVisibilityAuto: true })"
    chat.page.wait_for_function(f"(node) => !({is_drawn})(node)", arg=first.element_handle())
    chat.page.locator("#scroller").press("Home")
    chat.page.wait_for_function(is_drawn, arg=first.element_handle())
    expect(first).to_be_in_viewport()


def test_what_is_read_moves_with_the_wheel_and_by_nothing_else(ring: LiveRing, chat: ChatPage) -> None:
    """Turns above come into sight with other heights than were guessed for them."""
    heights = (1, 30, 2, 45, 15, 1, 60, 5, 35)
    items = [
        {"role": role, "content": "Line.\n\n" * (lines if role == "assistant" else 1)}
        for lines in heights
        for role in ("user", "assistant")
    ]
    chat.page.goto(f"{chat.url}/#/c/{ring.converse(items)}")
    expect(chat.turns).to_have_count(len(heights))
    _until_at_bottom(chat)
    chat.page.locator("#scroller").hover()
    moves = []
    while chat.page.locator("#scroller").evaluate("(scroller) => scroller.scrollTop > 300"):
        chat.page.evaluate("""() => {
            const at = (step) => document.elementFromPoint(innerWidth * 0.6, 150 + 5 * step);
            window.watched = [...Array(60).keys()].map((step) => at(step).closest(".block, .said")).find(Boolean);
            window.stood = window.watched.getBoundingClientRect().top;
        }""")
        chat.page.mouse.wheel(0, -250)
        chat.page.wait_for_function("() => window.watched.getBoundingClientRect().top !== window.stood")
        _settled_place(chat)
        moves.append(chat.page.evaluate("() => Math.round(window.watched.getBoundingClientRect().top - window.stood)"))
    assert len(moves) > 20 and all(abs(move - 250) <= 2 for move in moves), moves


def _settled_place(chat: ChatPage) -> float:
    """Return where the reader is once scrolling has come to rest: three frames in one place."""
    place: float = chat.page.evaluate("""async () => {
        const scroller = document.querySelector("#scroller");
        for (let last = -1, same = 0; same < 3; ) {
            await new Promise(requestAnimationFrame);
            same = scroller.scrollTop === last ? same + 1 : 0;
            last = scroller.scrollTop;
        }
        return scroller.scrollTop;
    }""")
    return place


def _until_at_bottom(chat: ChatPage) -> None:
    expect(chat.button("Latest")).to_be_hidden()
    expect(chat.newest.locator(".answer-foot")).to_be_in_viewport()


def _brightness(chat: ChatPage) -> float:
    """Return how bright the page's ground is, 0 to 255, as painted."""
    colour: str = chat.page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = (int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return (red + green + blue) / 3

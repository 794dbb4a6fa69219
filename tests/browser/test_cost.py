"""What long answers and long conversations cost, counted in elements and boxes that Chromium touches, never in time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken

SHORT, LONG = 2_000, 40_000  # characters; the longer one is what 10,000 tokens make
LINE = "The river turns a mill wheel and falls into the race.\n"
SHAPES: dict[str, Callable[[int], str]] = {
    "paragraphs": lambda size: (3 * LINE + "\n") * (size // 160),
    "code": lambda size: "```python\n" + LINE * (size // 50),
    "list": lambda size: f"- **An item.** {LINE}" * (size // 60),
    "formulas": lambda size: f"Then $x_1^2 = y$ holds. {LINE}\n$$\n\\frac{{a}}{{b}} = c\n$$\n\n" * (size // 100),
    "table": lambda size: "| a | b |\n|---|---|\n" + f"| 1 | {LINE[:-1]} |\n" * (size // 60),
}

# A turn on the page that takes `text` up to `from`, then grows by 40 tokens, one a frame.
GROW = """
    const [text, from] = argument;
    performance.now = () => 0; // on a slow machine text is drawn less often
    const { Turn } = await import('/js/turn.js');
    const turn = new Turn("Question");
    const view = new m.Thread().add(turn);
    const frame = () => new Promise(requestAnimationFrame);
    const take = async (delta) => {
      view.grow(turn.take({ type: "response.output_text.delta", delta }), delta);
      await frame();
      await frame();
    };
    await take(text.slice(0, from));
    while (text.includes("$$") && !document.querySelector("math")) await frame(); // their library comes when it comes
    window.grow = async () => {
      for (let at = from; at < from + 40 * 5; at += 5) await take(text.slice(at, at + 5));
    };
"""


@dataclass
class Cost:
    """What a stretch of time took: elements styled, boxes laid out again, boxes looked at in all."""

    styled: int = 0
    dirty: int = 0
    total: int = 0


@contextmanager
def traced(page: Page) -> Iterator[Cost]:
    """Count by Chromium's own trace; the counts are there after the block."""
    browser = page.context.browser
    assert browser is not None
    cost = Cost()
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    yield cost
    for event in json.loads(browser.stop_tracing())["traceEvents"]:
        told = event.get("args", {})
        cost.styled += told.get("elementCount", 0) if event["name"] == "UpdateLayoutTree" else 0
        if event["name"] == "Layout" and "beginData" in told:
            cost.dirty += told["beginData"]["dirtyObjects"]
            cost.total += told["beginData"]["totalObjects"]


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_ten_thousandth_token_costs_no_more_than_the_five_hundredth(chat: ChatPage, shape: str) -> None:
    early, late = (_cost_of_growing(chat, SHAPES[shape](size + 2_000), size) for size in (SHORT, LONG))
    assert early.styled > 0 and early.dirty > 0, "the trace tells what was done"
    assert late.styled < 2 * early.styled, (early, late)
    assert late.dirty < 2 * early.dirty, (early, late)
    if shape in ("paragraphs", "code", "formulas"):
        assert late.total < 2 * early.total, "what is out of sight is no part of the layout"


def _cost_of_growing(chat: ChatPage, text: str, size: int) -> Cost:
    chat.page.reload()
    expect(chat.page.locator("#model-name")).not_to_have_text("…")
    chat.call("thread", GROW, [text, size])
    with traced(chat.page) as cost:
        chat.page.evaluate("() => window.grow()")
    return cost


GROW_CODE = """
    const root = document.createElement("div");
    root.className = "prose";
    document.querySelector("#thread").append(root);
    const growing = new m.GrowingText(root);
    for (let at = 0; at < argument.length; at += 499) {
      growing.append(argument.slice(at, at + 499));
      await new Promise(requestAnimationFrame);
    }
    growing.finish();
"""


def test_no_box_of_a_long_code_block_holds_much_of_it(chat: ChatPage) -> None:
    """A box is laid out as a whole, so one for all lines would make each line dearer than the one before."""
    code = "".join(f"line_{number} = {number}\n" for number in range(600))
    chat.call("growing_text", GROW_CODE, f"```\n{code}```\n\nDone.")
    boxes = chat.page.locator(".prose .code-lines")
    lengths = boxes.evaluate_all("(boxes) => boxes.map((box) => box.textContent.length)")
    assert len(lengths) > 3 and max(lengths) < 3_000
    assert chat.page.locator(".prose pre code").evaluate("(code) => code.textContent") == code[:-1]
    chat.page.locator(".prose pre").evaluate("(pre) => getSelection().selectAllChildren(pre)")
    assert chat.page.evaluate("() => getSelection().toString()").rstrip("\n") == code[:-1], "boxes add no lines"


def test_what_has_not_changed_in_a_growing_list_keeps_its_nodes(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("- one\n- two\n- thr"), *spoken("ee **bold**\n- four", after=gate))
    chat.send("List")
    expect(chat.answer.locator("li")).to_have_count(3)
    chat.page.evaluate("""() => {
        const items = document.querySelectorAll(".answer-text li");
        for (const item of items) item.isOld = true;
        getSelection().selectAllChildren(items[1]);
    }""")
    ring.open(gate)
    chat.until_done()
    expect(chat.answer.locator("li")).to_have_text(["one", "two", "three bold", "four"])
    old = chat.answer.locator("li").evaluate_all("(items) => items.map((item) => Boolean(item.isOld))")
    assert old == [True, True, True, False]
    assert chat.page.evaluate("() => getSelection().toString()").strip() == "two"


def test_a_page_at_rest_animates_nothing(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("Hello")
    chat.page.wait_for_function("() => document.getAnimations().length === 0")

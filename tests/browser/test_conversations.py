"""Conversations are kept by the server: they survive reloads, reach the prompt, and are the same in every tab."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Route, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OpenPage
from tests.browser.live_ring import LiveRing, spoken

CONVERSATION = re.compile(r"/v1/conversations/conv_\w+$")


def test_a_reload_keeps_the_conversation_and_its_bills(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Blue."))
    chat.ask("Which colour?")
    bill = chat.bill.inner_text()
    chat.page.reload()
    expect(chat.turns).to_have_count(1)
    expect(chat.newest.locator(".said")).to_have_text("Which colour?")
    expect(chat.answer).to_have_text("Blue.")
    expect(chat.bill).to_have_text(bill, use_inner_text=True)
    expect(chat.page).to_have_title("Which colour? · Headrace")


def test_the_second_turn_remembers_the_first(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("Nice to meet you."))
    chat.ask("My name is Ada.")
    chat.ask("What is my name?")
    prompt = ring.prompt_text()
    assert prompt.index("My name is Ada.") < prompt.index("Nice to meet you.") < prompt.index("What is my name?")


def test_the_side_list_opens_conversations_and_a_new_chat_leaves_them(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("One."))
    chat.ask("First question")
    chat.button("New chat").first.click()
    expect(chat.message).to_be_focused()
    ring.play(*spoken("Two."))
    chat.ask("Second question")
    expect(chat.conversations).to_have_text(["Second question", "First question"])
    chat.conversations.filter(has_text="First").click()
    expect(chat.answer).to_have_text("One.")
    chat.page.go_back()
    expect(chat.answer).to_have_text("Two.")


def test_a_title_is_the_first_line_that_says_something(chat: ChatPage) -> None:
    titles = {
        "  Why is\tit so?\nTell me": "Why is it so?",
        "Repeat exactly: ```python\nx = 1\n```": "Repeat exactly:",
        "```c++\nint x;\n```\nWhat is it?": "int x;",
        "`a` or ```b``` here": "`a` or ```b``` here",
        "```": "```",
        "word " * 20: "word " * 10 + "word…",
    }
    for text, title in titles.items():
        assert chat.call("chat", "return m.titleFrom(argument)", text) == title


def test_a_new_conversation_is_listed_before_the_server_is_asked_for_the_list(ring: LiveRing, chat: ChatPage) -> None:
    held: list[Route] = []
    chat.page.route("**/v1/conversations?*", lambda route: held.append(route))
    chat.ask("Which colour?")
    expect(chat.conversations).to_have_text(["Which colour?"])
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("Which colour?")
    chat.page.unroute("**/v1/conversations?*")


def test_of_two_readings_of_the_list_the_later_one_is_shown(chat: ChatPage) -> None:
    crossed = """
        const asked = [];
        const shown = [];
        const side = Object.assign(new EventTarget(), { show: (entries) => shown.push(entries.length) });
        const api = { conversations: () => new Promise((resolve) => asked.push(resolve)) };
        const list = new m.Conversations({ api, connection: { keepTrying: (read) => read() }, tabs: null, side });
        const readings = [list.refresh(), list.refresh()];
        asked[1]({ data: [{ id: "conv_new" }], has_more: false });
        await readings[1];
        asked[0]({ data: [], has_more: false });
        await readings[0];
        return shown;
    """
    assert chat.call("conversations", crossed) == [1]


def test_the_whole_list_is_read_only_while_somebody_searches_it(chat: ChatPage) -> None:
    searched = """
        let numRead = 0;
        const api = { conversations: async () => ({ data: [], last_id: "conv_x", has_more: (numRead += 1) % 9 > 0 }) };
        const side = Object.assign(new EventTarget(), { show: () => {}, isSearched: true });
        const list = new m.Conversations({ api, connection: { keepTrying: (read) => read() }, tabs: null, side });
        const isRead = new Promise((resolve) => list.addEventListener("change", resolve, { once: true }));
        side.dispatchEvent(new Event("all"));
        await isRead;
        side.isSearched = false;
        await list.refresh();
        return numRead;
    """
    assert chat.call("conversations", searched) == 10


def test_a_conversation_of_today_is_one_whatever_the_readers_clock_says(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("A question")
    for days in (-3, 3):
        chat.page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=days))
        chat.page.reload()
        expect(chat.conversations).to_have_text(["A question"])
        expect(chat.page.locator(".side-day")).to_have_text(["Today"])


def test_a_conversation_is_renamed_in_place(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("A question")
    chat.rename("A question", "Rivers")
    expect(chat.conversations).to_have_text(["Rivers"])
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("Rivers")
    chat.page.reload()
    expect(chat.conversations).to_have_text(["Rivers"])


def test_a_new_title_leaves_what_else_is_known_of_a_conversation(ring: LiveRing, chat: ChatPage) -> None:
    async def create() -> str:
        body = {"metadata": {"title": "Old", "topic": "rivers"}}
        created = (await ring.ring.http.post("/v1/conversations", json=body)).raise_for_status()
        return str(created.json()["id"])

    async def metadata(conversation: str) -> dict[str, str]:
        found: dict[str, str] = (await ring.ring.http.get(f"/v1/conversations/{conversation}")).json()["metadata"]
        return found

    conversation = ring.portal.call(create)
    chat.page.reload()
    chat.rename("Old", "New")
    expect(chat.conversations).to_have_text(["New"])
    assert ring.portal.call(metadata, conversation) == {"title": "New", "topic": "rivers"}


def test_escape_leaves_the_title_as_it_was(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("A question")
    item = chat.page.locator(".side-item").first
    item.hover()
    chat.button("Rename", item).click()
    chat.page.get_by_label("Title").fill("Nonsense")
    chat.page.keyboard.press("Escape")
    expect(chat.conversations).to_have_text(["A question"])


def test_a_conversation_is_deleted_only_after_a_yes(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("A secret")
    conversation = re.search(r"#/c/(.+)$", chat.page.url)
    assert conversation is not None
    item = chat.page.locator(".side-item").first
    item.hover()
    chat.button("Delete", item).click()
    chat.button("Keep it").click()
    expect(chat.conversations).to_have_count(1)
    item.hover()
    chat.button("Delete", item).click()
    chat.button("Delete", chat.page.get_by_role("dialog")).click()
    expect(chat.conversations).to_have_count(0)
    expect(chat.turns).to_have_count(0)
    chat.page.goto(f"{chat.url}/#/c/{conversation[1]}")
    expect(chat.banner).to_have_text("This conversation no longer exists.")


def test_answering_again_replaces_the_newest_answer(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("A poor answer."))
    chat.ask("Think hard")
    ring.play(*spoken("A better one."))
    chat.button("Answer again").click()
    expect(chat.answer).to_have_text("A better one.")
    chat.until_done()
    assert "A poor answer." not in ring.prompt_text()
    chat.page.reload()
    expect(chat.turns).to_have_count(1)
    expect(chat.answer).to_have_text("A better one.")


def test_two_tabs_show_the_same(ring: LiveRing, chat: ChatPage, open_page: OpenPage) -> None:
    ring.play(*spoken("One."))
    chat.ask("First")
    other = open_page(chat.page.url, beside=chat)
    expect(other.turns).to_have_count(1)
    ring.play(*spoken("Two."))
    other.ask("Second")
    expect(chat.turns).to_have_count(2)
    expect(chat.answer).to_have_text("Two.")
    chat.button("New chat").first.click()
    chat.ask("Third")
    expect(other.conversations).to_have_count(2)


def test_what_another_tab_said_while_an_answer_ran_is_shown_when_it_has_ended(
    live: Callable[..., LiveRing], open_page: OpenPage
) -> None:
    ring = live(turn_wait_s=1.0)  # then a request goes on without the turn that is not stored
    chat = open_page(ring.url)
    chat.ask("First")
    other = open_page(chat.page.url, beside=chat)
    expect(other.turns).to_have_count(1)
    other.page.route(CONVERSATION, lambda route: route.fulfill(status=404, json={}))  # it does not hear of the answer
    gate = ring.gate()
    ring.play(*spoken("Slow."), before_end=gate)
    chat.send("A long one")
    expect(chat.answer).to_have_text("Slow.")
    ring.play(*spoken("Quick."))
    with chat.page.expect_request("**/v1/conversations?*"):  # it was told
        other.ask("A short one")
    ring.open(gate)
    for page in (chat, other):
        expect(page.turns).to_have_count(3)
        expect(page.page.locator(".said", has_text="A short one")).to_have_count(1)
        expect(page.page.locator(".said", has_text="A long one")).to_have_count(1)


def test_a_change_that_is_being_read_when_an_answer_begins_is_shown_when_it_has_ended(
    ring: LiveRing, chat: ChatPage, open_page: OpenPage
) -> None:
    chat.ask("First")
    other = open_page(chat.page.url, beside=chat)
    expect(other.turns).to_have_count(1)
    held: list[Route] = []
    chat.page.route("**/items?*", lambda route: route.continue_() if held else held.append(route))
    with chat.page.expect_request("**/items?*"):
        other.ask("Second")
    gate = ring.gate()
    ring.play(*spoken("Slow."), before_end=gate)
    chat.send("Third")
    expect(chat.answer).to_have_text("Slow.")
    with chat.page.expect_response("**/items?*"):
        held[0].continue_()
    ring.open(gate)
    expect(chat.page.locator(".said")).to_have_text(["First", "Second", "Third"])


def test_of_two_readings_the_one_that_was_asked_for_later_counts(chat: ChatPage) -> None:
    crossed = """
        const asked = [];
        const stored = new m.StoredTurns({ items: () => new Promise((resolve) => asked.push(resolve)) }, "conv_x");
        const readings = [stored.refresh(), stored.refresh()];
        const item = { id: "msg_x", type: "message", role: "user", content: "New" };
        asked[1]({ data: [item], has_more: false });
        await readings[1];
        asked[0]({ data: [], has_more: false });
        await readings[0];
        return stored.items.length;
    """
    assert chat.call("stored_turns", crossed) == 1


def test_a_question_before_hundreds_of_calls_is_found(chat: ChatPage) -> None:
    paged = """
        const call = (number) => ({ id: `fc_${number}`, type: "function_call", call_id: `c${number}`, name: "f" });
        const said = (id, role) => ({ id, type: "message", role, content: id });
        const calls = [...Array(250).keys()].map(call);
        const all = [said("one", "user"), said("two", "assistant"), said("three", "user"), ...calls].reverse();
        all.unshift(said("five", "user"), said("four", "assistant"));
        const items = async (_, after) => {
            const at = all.findIndex((item) => item.id === after) + 1;
            return { data: all.slice(at, at + 100), has_more: all.length > at + 100 };
        };
        const stored = new m.StoredTurns({ items }, "conv_x");
        await stored.refresh();
        const shown = [stored.turns.map((turn) => turn.input)];
        while (stored.hasEarlier && shown.length < 5) {
            await stored.earlier();
            shown.push(stored.turns.map((turn) => turn.input));
        }
        return [shown, stored.turns[1].calls.length, stored.items.length === all.length];
    """
    shown, num_calls, whole = chat.call("stored_turns", paged)
    assert shown == [["five"], ["one", "three", "five"]]
    assert (num_calls, whole) == (250, True)


def test_a_long_conversation_loads_its_earlier_turns_on_demand(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("a"))
    items = [{"role": role, "content": f"{role} {number}"} for number in range(60) for role in ("user", "assistant")]
    conversation = ring.converse(items[:20])
    for at in range(20, 120, 20):
        ring.portal.call(_extend, ring, conversation, items[at : at + 20])
    chat.page.goto(f"{chat.url}/#/c/{conversation}")
    expect(chat.newest.locator(".said")).to_be_visible()
    shown = chat.turns.count()
    earlier = chat.button("Earlier messages")
    chat.turns.first.evaluate("(turn) => (turn.isOld = true)")
    earlier.click()
    expect(chat.turns).not_to_have_count(shown)
    expect(chat.turns.first.locator(".said")).to_have_text("user 0")
    added = chat.turns.count() - shown
    assert chat.turns.nth(added).evaluate("(turn) => Boolean(turn.isOld)"), "what was there stays as it is"


def test_turns_that_came_as_the_input_of_one_request_keep_their_answers(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("a"))
    said = ("One", "First.", "Two", "Second.", "Three", "Third, and ")
    items = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 3, said, strict=True)]
    conversation = ring.converse(items[:1])
    ring.portal.call(_extend, ring, conversation, items[1:])
    chat.page.goto(f"{chat.url}/#/c/{conversation}")
    expect(chat.bill).to_be_visible()
    chat.page.wait_for_load_state("networkidle")
    expect(chat.page.locator(".answer-text")).to_have_text(["First.", "Second.", "Third, and a"])
    expect(chat.page.locator(".bill-line")).to_have_count(1)


async def _extend(ring: LiveRing, conversation: str, items: list[dict[str, str]]) -> None:
    body = {"model": "tiny", "input": items, "conversation": conversation, "max_output_tokens": 1}
    (await ring.ring.http.post("/v1/responses", json=body)).raise_for_status()

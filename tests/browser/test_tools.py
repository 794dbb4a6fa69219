"""What users of a chat page look for: a search, shortcuts, files in and out, tools that were called, any script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken

CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the weather in Ulm?"},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Ulm"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "12 degrees"},
    {"role": "assistant", "content": "It has 12 degrees."},
]


def _open(ring: LiveRing, chat: ChatPage, items: list[dict[str, Any]], **metadata: str) -> None:
    async def create() -> str:
        body = {"items": items, "metadata": metadata}
        response = await ring.ring.http.post("/v1/conversations", json=body)
        return str(response.raise_for_status().json()["id"])

    chat.page.goto(f"{chat.url}/#/c/{ring.portal.call(create)}")
    expect(chat.newest).to_be_visible()


def test_a_called_tool_is_shown_with_what_it_was_given_and_gave(ring: LiveRing, chat: ChatPage) -> None:
    _open(ring, chat, CALLED)
    expect(chat.turns).to_have_count(1)
    expect(chat.answer).to_have_text("It has 12 degrees.")
    chat.page.get_by_text("Called get_weather").click()
    expect(chat.newest.locator(".tool code").nth(1)).to_have_text('{\n  "city": "Ulm"\n}')
    expect(chat.newest.locator(".tool code").nth(2)).to_have_text("12 degrees")


def test_a_custom_tool_and_one_of_a_namespace_are_shown_with_their_texts(ring: LiveRing, chat: ChatPage) -> None:
    patch = "*** Begin Patch\n+<b>water</b>\n*** End Patch"
    _open(
        ring,
        chat,
        [
            {"role": "user", "content": "Patch it."},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": patch},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Done!"}]},
            {"type": "function_call", "call_id": "c2", "namespace": "files", "name": "read", "arguments": "{}"},
        ],
    )
    expect(chat.newest.locator(".tool summary")).to_have_text(["Called apply_patch", "Calls files.read"])
    chat.page.get_by_text("Called apply_patch").click()
    expect(chat.newest.locator(".tool pre").nth(0)).to_have_text(patch)
    expect(chat.newest.locator(".tool pre").nth(1)).to_have_text("Done!")


def test_a_conversation_is_downloaded_as_markdown_and_as_json(ring: LiveRing, chat: ChatPage) -> None:
    expect(chat.button("Download this conversation")).to_be_hidden()
    _open(ring, chat, CALLED, title="Weather / Ulm?")
    expect(chat.page.get_by_role("heading", level=1)).to_have_text("Weather / Ulm?")
    files = {}
    for kind in ("Markdown", "JSON"):
        chat.button("Download this conversation").click()
        with chat.page.expect_download() as download:
            chat.button(kind).click()
        files[download.value.suggested_filename] = Path(download.value.path()).read_text()
    assert set(files) == {"Weather-Ulm.md", "Weather-Ulm.json"}
    assert files["Weather-Ulm.md"] == (
        "# Weather / Ulm?\n\n## You\n\nWhat is the weather in Ulm?\n\n## Answer\n\nCalled `get_weather` with\n\n"
        '```\n{"city":"Ulm"}\n```\n\nwhich gave\n\n```\n12 degrees\n```\n\nIt has 12 degrees.\n'
    )
    whole = json.loads(files["Weather-Ulm.json"])
    assert [item["type"] for item in whole["items"]] == ["message", "function_call", "function_call_output", "message"]


def test_titles_are_searched_and_shortcuts_are_listed(ring: LiveRing, chat: ChatPage) -> None:
    expect(chat.page.get_by_label("Search conversations")).to_be_hidden()
    for word in ("Danube", "Rhine", "Rhone", "Loire", "Ebro", "Tagus", "Volga", "Elbe"):
        ring.portal.call(_titled, ring, word)
    chat.page.reload()
    chat.page.get_by_label("Search conversations").fill("rh")
    expect(chat.conversations).to_have_text(["Rhone", "Rhine"])
    chat.page.get_by_label("Search conversations").fill("Po")
    expect(chat.page.get_by_text("No title has these words.")).to_be_visible()
    chat.page.keyboard.press("Control+/")
    dialog = chat.page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("Edit the newest message")
    chat.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


async def _titled(ring: LiveRing, title: str) -> None:
    (await ring.ring.http.post("/v1/conversations", json={"metadata": {"title": title}})).raise_for_status()


def _attach(chat: ChatPage, name: str, content: bytes) -> None:
    kind = "text/plain" if name.endswith(".txt") else "application/octet-stream"
    chat.page.locator("#file").set_input_files({"name": name, "mimeType": kind, "buffer": content})


def _attached(chat: ChatPage) -> Locator:
    return chat.page.locator(".composer .attachment")


def _paste(chat: ChatPage, text: str) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    chat.page.keyboard.press("Control+v")


def test_text_files_go_with_the_message_and_others_are_refused(ring: LiveRing, chat: ChatPage) -> None:
    _attach(chat, "a.py", b"print('```')\r\n")
    expect(_attached(chat)).to_contain_text(["a.py"])
    expect(chat.message).to_be_focused()
    _attach(chat, "a.png", b"\x89PNG\xff")
    expect(chat.banner).to_contain_text("a.png is no text")
    expect(_attached(chat)).to_have_count(1)
    chat.ask("Look.")
    assert ring.requests[-1].request.messages[-1].content == "a.py\n````py\nprint('```')\n````\n\nLook."
    expect(_attached(chat)).to_have_count(0)
    expect(chat.page.locator("#title")).to_have_text("Look.")


def test_a_file_may_go_without_words_or_be_taken_back(ring: LiveRing, chat: ChatPage) -> None:
    for name in ("a.txt", "b.txt"):
        _attach(chat, name, b"mill")
        expect(_attached(chat).last).to_contain_text(name)
    chat.button("Remove a.txt").click()
    expect(_attached(chat)).to_have_count(1)
    chat.button("Send").click()
    chat.until_done()
    assert ring.requests[-1].request.messages[-1].content == "b.txt\n```txt\nmill\n```"
    expect(chat.button("Send")).to_be_disabled()


def test_a_long_text_that_is_pasted_stands_beside_the_box_and_goes_whole(chat: ChatPage) -> None:
    # In the box, lines like these take the browser seconds at once, and a tenth of one for every key.
    short, long = "x = 1\n" * 100, "x = 1\n" * 5_000
    chat.message.focus()
    _paste(chat, short)
    expect(chat.message).to_have_value(short)
    chat.message.fill("Sum it up.")
    for name in ("pasted.txt", "pasted-2.txt"):
        _paste(chat, long)
        expect(_attached(chat).last).to_have_text(f"{name}5,000 lines")
    expect(chat.message).to_have_value("Sum it up.")
    with chat.page.expect_request("**/v1/responses") as sent:
        chat.message.press("Enter")
    parts = [f"{name}\n```txt\n{long}```" for name in ("pasted.txt", "pasted-2.txt")]
    body: Any = sent.value.post_data_json
    assert body["input"] == "\n\n".join([*parts, "Sum it up."])
    expect(chat.newest.locator(".said summary bdi")).to_have_text(["pasted.txt", "pasted-2.txt"])
    expect(chat.newest.locator(".said")).to_contain_text("Sum it up.")
    expect(chat.newest.get_by_role("button", name="Show all")).to_have_count(0)  # the words are few


# A paste as programs make it; tells whether the page took it, so that the browser does not put the text in.
PASTE = """(field, [text, name, type]) => {
    const clipboardData = new DataTransfer();
    if (text) clipboardData.setData("text/plain", text);
    clipboardData.items.add(new File([type === "text/plain" ? "mill" : new Uint8Array([0, 1])], name, { type }));
    return !field.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


def test_cells_that_come_with_their_picture_are_pasted_as_text(chat: ChatPage) -> None:
    """Office programs copy both."""
    assert not chat.message.evaluate(PASTE, ["1\t2", "image.png", "image/png"])
    assert chat.message.evaluate(PASTE, ["1\t2\n" * 5_000, "image.png", "image/png"])
    expect(_attached(chat)).to_have_text("pasted.txt5,000 lines")
    assert chat.message.evaluate(PASTE, ["a.txt", "a.txt", "text/plain"]), "its name beside a file"
    expect(_attached(chat).last).to_contain_text("a.txt")
    expect(chat.banner).to_be_empty()
    assert chat.message.evaluate(PASTE, ["", "image.png", "image/png"])
    expect(chat.banner).to_contain_text("image.png is no text")


def test_a_message_with_files_is_edited_without_them_in_the_box(ring: LiveRing, chat: ChatPage) -> None:
    _attach(chat, "a.txt", b"mill")
    expect(_attached(chat)).to_have_count(1)
    chat.ask("What is it?")
    chat.newest.hover()
    chat.button("Edit message").click()
    field = chat.newest.get_by_label("Edit message")
    expect(field).to_have_value("What is it?")
    expect(chat.newest.locator(".attachment")).to_contain_text(["a.txt"])
    field.fill("Where is it?")
    field.press("Enter")
    expect(chat.newest.locator(".said")).to_contain_text("Where is it?")
    chat.until_done()
    assert ring.requests[-1].request.messages[-1].content == "a.txt\n```txt\nmill\n```\n\nWhere is it?"


def test_a_message_of_files_is_parted_as_it_was_joined(chat: ChatPage) -> None:
    own = "look:\n```py\nmine()\n```\n\nb.md\n```md\nx\n```\n\nEnd"
    files = [{"name": "a.py", "text": "`" + "` `" * 200_000}, {"name": "Makefile", "text": "all:\n\n\n"}]
    joined = chat.call("attached", "return m.joined(argument[0], argument[1])", [files, own])
    parted = chat.call("attached", "return m.parted(argument)", joined)
    assert parted["words"] == own, "a file between words stays there"
    assert [one["name"] for one in parted["files"]] == ["a.py", "Makefile"]
    assert chat.call("attached", "return m.joined(argument.files, argument.words)", parted) == joined


def test_a_long_message_is_not_cut_within_a_character(chat: ChatPage) -> None:
    parts = "return m.folded([argument, 'c'], 3).map((node) => node.textContent ?? node)"
    assert chat.call("attached", parts, "aa😀b") == ["aa", "😀bc"]
    assert chat.call("attached", parts, "aab") == ["aab", "", "c"]
    assert chat.call("attached", parts, "a") == ["a", "c"]


def test_a_file_in_a_message_is_folded_away_under_its_name(chat: ChatPage) -> None:
    text = "# Mills\n\n```py\nturn()\n```\n"
    for name in ("mills.md", "notes.txt"):
        _attach(chat, name, text.encode())
        expect(_attached(chat).last).to_contain_text(name)
    chat.ask("look:\n```py\nmine()\n```")
    for _ in ("as it was sent", "as the server has it"):
        said = chat.newest.locator(".said")
        expect(said.locator("summary bdi")).to_have_text(["mills.md", "notes.txt"])
        expect(said.locator("summary span").first).to_have_text("5 lines")
        expect(said.locator("code").first).to_be_hidden()
        said.locator("summary").first.click()
        expect(said.locator("code").first).to_have_text(text.rstrip())
        expect(said).to_contain_text("mine()")
        chat.page.reload()


def test_sampling_settings_are_sent_only_when_chosen(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("Plain")
    plain = ring.requests[-1].request.sampling
    chat.button("Settings").click()
    chat.page.get_by_text("More about sampling").click()
    for name, value in {
        "Top p": "0.5",
        "Top k": "7",
        "Min p": "0.25",
        "Repetition penalty": "1.5",
        "Seed": "0",
    }.items():
        chat.page.get_by_label(name, exact=True).fill(value)
    chat.page.get_by_label("Top p", exact=True).fill("7")  # out of range: the last good one counts
    chat.page.keyboard.press("Escape")
    chat.ask("Chosen")
    chosen = ring.requests[-1].request.sampling
    assert (plain.seed, plain.top_k == 7) == (None, False)
    assert (chosen.top_p, chosen.top_k, chosen.min_p, chosen.repetition_penalty, chosen.seed) == (0.5, 7, 0.25, 1.5, 0)


def test_text_that_reads_from_the_right_stands_on_the_right(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("\u0627\u0644\u0646\u0647\u0631\n\n1. \u0627\u0644\u0631\u0627\u064a\u0646\n\n`code`\n\nEnglish"))
    chat.ask("\u0627\u0643\u062a\u0628")
    directions = chat.page.eval_on_selector_all(
        ".said, .answer-text .block", "nodes => nodes.map((node) => getComputedStyle(node).direction)"
    )
    assert directions == ["rtl", "rtl", "rtl", "ltr", "ltr"]

"""Pictures on the page: chosen, pasted and dropped, seen in the conversation, and there when it is opened again."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as PILImage
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OpenPage
from tests.browser.live_ring import LiveRing, spoken
from tests.tiny_model import write_seeing_model


def encoded(color: str, size: tuple[int, int] = (40, 30)) -> bytes:
    file = io.BytesIO()
    PILImage.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


RED, BLUE = encoded("red"), encoded("blue", (80, 60))

# A file arrives as the browser itself would bring it: in the clipboard of a paste, or under the pointer.
BRING = """([kind, data]) => {
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    const bag = new DataTransfer();
    bag.items.add(new File([bytes], "blue.png", { type: "image/png" }));
    const options = { bubbles: true, cancelable: true };
    const message = document.querySelector("#message");
    if (kind === "paste") message.dispatchEvent(new ClipboardEvent("paste", { ...options, clipboardData: bag }));
    else message.dispatchEvent(new DragEvent("drop", { ...options, dataTransfer: bag }));
}"""


@pytest.fixture
def ring(live: Callable[..., LiveRing], tmp_path: Path) -> LiveRing:
    """A ring whose model sees pictures."""
    return live(model_path=write_seeing_model(tmp_path / "seeing"))


def bring(chat: ChatPage, kind: str, data: bytes) -> None:
    chat.page.evaluate(BRING, [kind, base64.b64encode(data).decode()])


def choose(chat: ChatPage, data: bytes) -> None:
    chat.page.locator("#file").set_input_files({"name": "red.png", "mimeType": "image/png", "buffer": data})


def seen_by(ring: LiveRing) -> list[bytes]:
    return [image.data for image in ring.requests[-1].images]


def test_pictures_go_with_the_message_and_are_there_when_it_is_opened_again(
    ring: LiveRing, chat: ChatPage, open_page: OpenPage
) -> None:
    ring.play(*spoken("A square."))
    expect(chat.button("Add a picture or a text file")).to_be_visible()
    choose(chat, RED)
    attached = chat.page.get_by_role("list", name="Attached").get_by_role("listitem")
    expect(attached).to_have_text(["red.png"])
    for kind, count in (("paste", 2), ("drop", 3)):
        bring(chat, kind, BLUE)
        expect(attached).to_have_count(count)
    chat.button("Remove blue.png", attached.last).click()
    chat.ask("What is this?")
    assert seen_by(ring) == [RED, BLUE]
    expect(attached).to_have_count(0)
    for page in (chat, open_page(chat.page.url, beside=chat)):
        expect(page.newest.get_by_role("img")).to_have_count(2)
        expect(page.newest.get_by_role("img", name="Attached picture 1")).to_be_visible()
        expect(page.newest.locator(".said")).to_have_text("What is this?")
        size = "(picture) => picture.decode().then(() => [picture.width, picture.height])"
        assert page.newest.get_by_role("img").first.evaluate(size) == [40, 30]  # also beside a larger one
    chat.ask("And now?")
    assert set(seen_by(ring)) == {RED, BLUE}


def test_one_may_be_sent_alone_and_is_kept_when_the_message_is_written_anew(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("A square."))
    choose(chat, RED)
    chat.button("Send").click()
    chat.until_done()
    expect(chat.conversations).to_have_text(["A picture"])
    chat.button("Edit message").click()
    chat.page.get_by_label("Edit message").fill("Which colour?")
    chat.button("Send", chat.newest).click()
    expect(chat.newest.locator(".said")).to_have_text("Which colour?")
    chat.until_done()
    assert seen_by(ring) == [RED]
    expect(chat.newest.get_by_role("img", name="Attached picture")).to_be_visible()


def test_they_are_back_when_an_answer_has_ended_whose_tab_was_reloaded(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("A "), *spoken("square.", after=gate))
    choose(chat, RED)
    chat.send("What is this?")
    expect(chat.answer).to_have_text("A")
    chat.page.reload()
    expect(chat.answer).to_have_text("A")
    ring.open(gate)
    chat.until_done()
    expect(chat.newest.get_by_role("img", name="Attached picture")).to_be_visible()
    expect(chat.turns).to_have_count(1)
    expect(chat.bill).to_be_visible()


def test_what_the_server_would_refuse_is_told_at_once(
    live: Callable[..., LiveRing], open_page: OpenPage, tmp_path: Path
) -> None:
    ring = live(model_path=write_seeing_model(tmp_path / "seeing"), max_images=1, max_image_bytes=2048)
    chat = open_page(ring.url)
    with chat.soon_shown("a.heic cannot be read; PNG, JPEG, WebP and GIF can."):
        chat.page.locator("#file").set_input_files({"name": "a.heic", "mimeType": "image/heic", "buffer": b"x"})
    with chat.soon_shown("red.png is larger than 2 KB, which is the most here."):
        choose(chat, RED + bytes(2048))
    choose(chat, RED)
    expect(chat.page.get_by_role("list", name="Attached").get_by_role("listitem")).to_have_text(["red.png"])
    with chat.soon_shown("A message has room for one picture."):
        choose(chat, RED)

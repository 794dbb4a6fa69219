"""What the page says and does when the server is gone, full, not ready, or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from playwright.sync_api import Route, expect

from gateway.edge.service import serve as serve_edge
from gateway.edge.settings import EdgeSettings
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OpenPage
from tests.browser.live_ring import LiveRing, spoken
from tests.ports import free_port
from wire.errors import InternalError

StartRing = Callable[..., LiveRing]


class SecondEdge:
    """Another edge of the same ring, which can be killed and started again at the same address."""

    def __init__(self, ring: LiveRing, settings: EdgeSettings) -> None:
        self.url = f"http://127.0.0.1:{settings.port}"
        self._ring = ring
        self._settings = settings
        self._scope: anyio.CancelScope | None = None
        self._gone = anyio.Event()
        self.start()

    def start(self) -> None:
        """Start serving."""
        self._gone = anyio.Event()
        self._ring.portal.start_task(self._serve)

    def kill(self) -> None:
        """Cut all connections and stop listening; nothing happens if it is gone already."""
        assert self._scope is not None
        self._ring.portal.call(self._scope.cancel)
        self._ring.portal.call(self._gone.wait)

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.CancelScope() as self._scope:
            await serve_edge(self._settings, task_status=task_status)
        self._gone.set()


# A fetch that the network swallows; it ends when its caller has had enough.
SWALLOWED = """
    const aborted = (signal, then) => signal.addEventListener("abort", () => then(signal.reason));
    window.fetch = (_, { signal }) => new Promise((_, reject) => aborted(signal, reject));
    window.asked = new m.Api({}).alive();
"""


@pytest.fixture
def edge(ring: LiveRing, bus_url: str, tiny_model: Path) -> Iterator[SecondEdge]:
    """An edge that can go away."""
    model_dir = str(tiny_model.parent)
    settings = EdgeSettings(
        redis_url=bus_url, models=(tiny_model.name,), model_dir=model_dir, port=free_port(), drain_s=0.0,
        history_timeout_s=60.0, tokenize_timeout_s=60.0,
    )  # fmt: skip
    second = SecondEdge(ring, settings)
    yield second
    second.kill()


def test_an_answer_goes_on_where_its_connection_broke(ring: LiveRing, edge: SecondEdge, open_page: OpenPage) -> None:
    chat = open_page(edge.url)
    gate = ring.gate()
    ring.play(*spoken("The first half"), *spoken(" and the second.", after=gate))
    chat.send("Tell me everything")
    expect(chat.answer).to_have_text("The first half")
    edge.kill()
    expect(chat.banner).to_have_text("The server cannot be reached. Trying again…")
    expect(chat.answer).to_have_text("The first half")
    expect(chat.notices).to_have_count(0)
    expect(chat.button("Stop")).to_be_visible()
    with chat.soon_shown("Reconnected."):
        edge.start()
    ring.open(gate)
    chat.until_done()
    expect(chat.answer).to_have_text("The first half and the second.")
    assert len(ring.requests) == 1


# The body of the next answer breaks off somewhere within an event; the server is there all the time.
CUT = """
    const whole = window.fetch;
    window.fetch = async (path, options) => {
        const response = await whole(path, options);
        if (path !== "v1/responses") return response;
        window.fetch = whole;
        let left = argument;
        const cut = new TransformStream({
            transform(bytes, controller) {
                controller.enqueue(bytes.slice(0, left));
                left -= bytes.length;
                if (left <= 0) controller.terminate();
            },
        });
        return new Response(response.body.pipeThrough(cut), response);
    };
"""


def test_a_stream_that_breaks_off_leaves_no_seam(ring: LiveRing, chat: ChatPage) -> None:
    text = "".join(f"{number} " for number in range(200))
    ring.play(*spoken(text))
    chat.call("api", CUT, 4_500)
    with chat.page.expect_request("**/v1/responses/*?stream=true&starting_after=*"):
        chat.send("Count")
    chat.until_done()
    expect(chat.answer).to_have_text(text.strip())
    expect(chat.banner).to_be_empty()
    assert len(ring.requests) == 1


def test_an_answer_that_was_over_long_ago_is_read_whole(ring: LiveRing, chat: ChatPage) -> None:
    held: list[Route] = []
    chat.page.route("**/v1/responses/*?stream=true*", lambda route: held.append(route))
    ring.play(*spoken("All of it."))
    chat.call("api", CUT, 2_000)
    with chat.page.expect_request("**/v1/responses/*?stream=true*"):
        chat.send("Tell me everything")
    expect(chat.button("Stop")).to_be_visible()
    ring.until_idle()
    held[0].fulfill(status=400, json={"error": {"code": "invalid_request", "message": "the events are not kept"}})
    chat.until_done()
    expect(chat.answer).to_have_text("All of it.")


def test_lists_are_read_as_soon_as_the_server_is_back(ring: LiveRing, edge: SecondEdge, open_page: OpenPage) -> None:
    chat = open_page(edge.url)
    ring.play(*spoken("Yes."))
    chat.ask("Are you there?")
    edge.kill()
    other = open_page(ring.url)  # the same ring through its other edge: another origin, so no tab tells the first one
    other.ask("Meanwhile")
    chat.button("New chat").click()
    chat.send("Into the void")
    expect(chat.notices).to_have_text("The connection broke before an answer came.")
    with chat.soon_shown("Reconnected."):
        edge.start()
    expect(chat.conversations).to_have_text(["Meanwhile", "Are you there?"])
    expect(chat.newest.locator(".said")).to_have_text("Into the void")
    chat.button("Try again").click()
    chat.until_done()
    expect(chat.turns).to_have_count(1)


def test_after_an_outage_the_conversation_on_screen_is_read_again(
    ring: LiveRing, edge: SecondEdge, open_page: OpenPage
) -> None:
    chat = open_page(edge.url)
    ring.play(*spoken("Yes."))
    chat.ask("Are you there?")
    edge.kill()
    ring.portal.call(_say, ring, chat.page.url.rpartition("/")[2], "From elsewhere")
    chat.rename("Are you there?", "Lost")
    expect(chat.banner).to_have_text("The server cannot be reached. Trying again…")
    edge.start()
    expect(chat.newest.locator(".said")).to_have_text("From elsewhere")


async def _say(ring: LiveRing, conversation: str, text: str) -> None:
    body = {"model": "tiny", "input": text, "conversation": conversation}
    (await ring.ring.http.post("/v1/responses", json=body)).raise_for_status()


def test_a_list_that_could_not_be_read_is_read_again(ring: LiveRing, chat: ChatPage) -> None:
    chat.ask("A question")
    chat.page.route("**/v1/conversations?*", lambda route: route.abort(), times=2)
    chat.page.reload()
    expect(chat.conversations).to_have_text(["A question"])


def test_a_full_server_is_named_as_such_and_the_message_can_be_sent_again(live: StartRing, open_page: OpenPage) -> None:
    ring = live(max_inflight=1)
    gate = ring.gate()
    ring.play(*spoken("Done."), before_end=gate)
    first, second = open_page(ring.url), open_page(ring.url)
    first.send("I was first")
    expect(first.answer).to_have_text("Done.")
    second.send("Me too")
    expect(second.notices).to_contain_text("The server has all the work it can take. Try again in")
    with second.page.expect_response("**/items?*"):
        second.page.evaluate(
            "() => document.dispatchEvent(new Event('visibilitychange'))"
        )  # reads the conversation again
    second.page.evaluate("() => new Promise(requestAnimationFrame)")
    expect(second.newest.locator(".said")).to_have_text("Me too")
    ring.open(gate)
    first.until_done()
    second.button("Try again").click()
    second.until_done()


def test_a_prompt_that_is_too_long_is_explained(chat: ChatPage) -> None:
    chat.send("word " * 1000)
    expect(chat.notices).to_contain_text("longer than the model can read at once")


def test_a_failure_in_mid_answer_is_shown_and_the_text_kept(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("So far so good"), error=InternalError("The replica broke."))
    chat.send("Try")
    expect(chat.newest).to_have_attribute("data-status", "failed")
    expect(chat.answer).to_have_text("So far so good")
    expect(chat.notices).to_have_count(1)
    expect(chat.button("Try again")).to_be_visible()


POLICY = """
[[rule]]
id = "secret"
kind = "terms"
terms = ["plutonium"]
action = "block"
[[rule]]
id = "name"
kind = "terms"
terms = ["Ada"]
action = "redact"
directions = ["answer"]
[[rule]]
id = "mail"
kind = "detect"
detect = ["email", "private_key"]
action = "redact"
directions = ["answer"]
"""


def test_what_the_content_policy_took_is_shown_plainly(live: StartRing, open_page: OpenPage, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    ring = live(safety_policy=str(policy))
    chat = open_page(ring.url)
    ring.play(*spoken("Ask Ada about it."))
    chat.ask("Who knows?")
    expect(chat.answer.locator("mark")).to_have_text("redacted")
    ring.play(*spoken("Ask a@b.org, c@d.org or **A@b.org**, [EMAIL_x] and `[EMAIL_9]`."))
    chat.ask("Who else?")
    expect(chat.answer.locator("mark")).to_have_text(["e-mail 1", "e-mail 2", "e-mail 1"])
    ring.play(*spoken("You need plutonium for that."))
    chat.send("What else?")
    expect(chat.notices).to_have_text("The rest was held back by this server’s content policy.")
    expect(chat.answer).to_have_text("You need")
    refused = "This server’s content policy refused the message. It was not answered."
    chat.send("plutonium")
    expect(chat.notices).to_have_text(refused)
    chat = open_page(ring.url)
    chat.send("plutonium")  # also as the first message, which names a conversation
    expect(chat.notices).to_have_text(refused)


def test_a_server_with_keys_is_asked_with_the_users_key(ring: LiveRing, open_page: OpenPage) -> None:
    """The answers come through the browser's own request filter, which plays a proxy that demands a key."""
    chat = open_page(ring.url)

    def demand(route: object) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":  # type: ignore[attr-defined]
            route.continue_()  # type: ignore[attr-defined]
        else:
            route.fulfill(status=401, json={"error": {"code": "unauthorized"}})  # type: ignore[attr-defined]

    chat.page.route("**/v1/**", demand)
    chat.page.reload()
    dialog = chat.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("wrong")
    chat.button("Continue").click()
    expect(dialog).to_contain_text("did not accept this key")
    dialog.get_by_label("Key", exact=True).fill("sesame")
    chat.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    chat.ask("Open")
    chat.page.reload()
    expect(chat.turns).to_have_count(1)


@pytest.mark.parametrize("part", ["page.js", "dom.js"])
def test_a_page_of_which_a_part_did_not_come_says_so(chat: ChatPage, part: str) -> None:
    chat.page.route(f"**/js/{part}", lambda route: route.abort())
    chat.page.reload()
    expect(chat.banner).to_have_text("A part of this page did not come. Reload it to go on.")
    chat.faults.clear()  # the script that did not come


def test_a_question_that_the_network_swallows_is_given_up(chat: ChatPage) -> None:
    chat.page.clock.install()
    chat.call("api", SWALLOWED)
    chat.page.clock.fast_forward(10_000)
    assert chat.page.evaluate("() => window.asked") is False

"""The page as a user sees it: what can be done, and where to look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, Locator, Page, Request, Response, expect

LIMIT_MS = 60_000  # for what must happen, however busy the machine is
expect.set_options(timeout=LIMIT_MS)

SHOWN = """(words) => ({
    once: new Promise((resolve) => {
        const look = () => {
            const labels = [...document.querySelectorAll("[aria-label]")].map((one) => one.getAttribute("aria-label"));
            if ([...labels, document.querySelector("#banner").textContent].includes(words)) resolve();
        };
        const options = { subtree: true, childList: true, characterData: true, attributes: true };
        new MutationObserver(look).observe(document.body, options);
    }),
})"""


class ChatPage:
    """One tab. `faults` collects script errors and breaches of the security policy."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self._asked: dict[Request, str] = {}  # what became of each request until the page had begun
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._note)
        page.on("requestfailed", self._note_lost)
        page.on("response", self._note_refused)
        page.on("request", self._note_asked)
        page.set_default_timeout(LIMIT_MS)
        try:
            page.goto(url)
            expect(page.locator("#model-name")).not_to_have_text("…")
        except (AssertionError, Error) as error:
            odd = {request.url: what for request, what in self._asked.items() if what != "200"}
            raise AssertionError(f"the page does not begin: {self.faults}; {len(self._asked)} asked, {odd}") from error
        page.remove_listener("request", self._note_asked)

    def _note(self, message: ConsoleMessage) -> None:
        # Requests that fail are what some tests are about; the browser logs them itself.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    def _note_asked(self, request: Request) -> None:
        self._asked[request] = "not answered"

    def _note_lost(self, request: Request) -> None:
        self._asked[request] = f"lost: {request.failure}"
        # Without one of its scripts the page stands still and says nothing.
        if request.resource_type == "script":
            self.faults.append(f"{request.url} did not come: {request.failure}")

    def _note_refused(self, response: Response) -> None:
        if response.request in self._asked:
            self._asked[response.request] = str(response.status)
        if response.request.resource_type == "script" and response.status >= 400:
            self.faults.append(f"{response.url} was answered with {response.status}")

    @property
    def message(self) -> Locator:
        """The box to write in."""
        return self.page.get_by_label("Message", exact=True)

    @property
    def turns(self) -> Locator:
        """The turns on screen, oldest first."""
        return self.page.locator(".turn")

    @property
    def newest(self) -> Locator:
        """The newest turn."""
        return self.turns.last

    @property
    def answer(self) -> Locator:
        """The text of the newest answer."""
        return self.newest.locator(".answer-text")

    @property
    def bill(self) -> Locator:
        """The bill of the newest answer."""
        return self.newest.locator(".bill-line")

    @property
    def notices(self) -> Locator:
        """What is said about the newest answer."""
        return self.newest.locator(".notice")

    @property
    def banner(self) -> Locator:
        """What is said about the connection."""
        return self.page.locator("#banner")

    @property
    def conversations(self) -> Locator:
        """The links of the side list."""
        return self.page.get_by_role("navigation", name="Conversations").get_by_role("link")

    def button(self, name: str, within: Locator | None = None) -> Locator:
        """The button of this name."""
        return (within or self.page).get_by_role("button", name=name, exact=True)

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.message.fill(text)
        self.message.press("Enter")

    def ask(self, text: str) -> None:
        """Send a message and wait for the whole answer."""
        before = self.turns.count()
        self.send(text)
        expect(self.turns).to_have_count(before + 1)
        self.until_done()

    def rename(self, title: str, new: str) -> None:
        """Rename a conversation in the side list."""
        item = self.page.locator(".side-item", has_text=title)
        item.hover()
        self.button("Rename", item).click()
        self.page.get_by_label("Title").fill(new)
        self.page.keyboard.press("Enter")

    def until_done(self) -> None:
        """Wait until the newest answer is complete and its bill is there."""
        expect(self.newest).to_have_attribute("data-status", "completed")
        expect(self.bill).to_be_visible()

    @contextmanager
    def soon_shown(self, words: str) -> Iterator[None]:
        """What the block does makes the page show `words`, as a label or in the banner, however briefly."""
        shown = self.page.evaluate_handle(SHOWN, words)
        yield
        shown.evaluate("(shown) => shown.once")

    def call(self, module: str, body: str, argument: Any = None) -> Any:
        """Run the body of an async function of `(m, argument)`, where `m` is a module of the page."""
        return self.page.evaluate(
            f"async (argument) => {{ const m = await import('/js/{module}.js'); {body} }}", argument
        )

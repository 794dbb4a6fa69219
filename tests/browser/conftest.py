"""Chromium on one side, a real ring on the other: edge, desks and a scripted replica run in a thread of their own.

Playwright's loop stays in this thread and ends with this folder's tests, so that it never meets the loops of others.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Browser, sync_playwright

from tests.browser import deaf
from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing
from tests.ring import MakeRing, make_ring, tiny_model

__all__ = ["make_ring", "tiny_model"]

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OpenPage = Callable[..., ChatPage]


def _chromium_path() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        reason = "no Chromium on PATH; install the package `chromium` to run the tests of the page"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running Chromium."""
    start = tmp_path_factory.mktemp("chromium") / "start"
    command = shlex.join([sys.executable, deaf.__file__, _chromium_path()])
    start.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    start.chmod(0o755)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=start, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """The thread that rings run in."""
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        yield portal


@pytest.fixture
def live(portal: BlockingPortal, make_ring: MakeRing) -> Iterator[Callable[..., LiveRing]]:
    """A function that starts a ring with these settings of the edge."""
    with ExitStack() as stack:

        def start(**edge: Any) -> LiveRing:
            return LiveRing(portal, stack.enter_context(portal.wrap_async_context_manager(make_ring(**edge))))

        yield start


@pytest.fixture
def ring(live: Callable[..., LiveRing]) -> LiveRing:
    """A ring with default settings."""
    return live()


@contextmanager
def _contexts(browser: Browser) -> Iterator[OpenPage]:
    with ExitStack() as stack:
        pages: list[ChatPage] = []

        def open_page(url: str, *, beside: ChatPage | None = None, **options: Any) -> ChatPage:
            """Open the page in a fresh browser profile, or as another tab `beside` one that is open."""
            if beside is None:
                options = {"viewport": {"width": 1280, "height": 800}, **options}
                context = browser.new_context(**options)
                stack.callback(context.close)
            else:
                context = beside.page.context
            pages.append(ChatPage(context.new_page(), url))
            return pages[-1]

        yield open_page
        faults = [fault for page in pages for fault in page.faults]
    assert not faults, f"the page reported faults: {faults}"


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """A function that opens the page; a script error or a breach of its security policy fails the test."""
    with _contexts(browser) as open_page:
        yield open_page


@pytest.fixture
def chat(ring: LiveRing, open_page: OpenPage) -> ChatPage:
    """The page of `ring`, open and ready."""
    return open_page(ring.url)

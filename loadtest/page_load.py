"""How long the chat page takes over a slow line, at the first visit and at the next one:

    python -m loadtest.page_load http://127.0.0.1:8000 [--kilobytes 50] [--latency 100] [--rounds 3]

Chromium emulates the line (kB/s and milliseconds a round trip). The page is loaded when it shows the model's name: all
modules have come and have run, and an answer of the API is there. Printed are the files that came over the line, their
kilobytes with heads, and the median time of so many rounds, each with a profile of its own.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from typing import Any, NamedTuple

from playwright.sync_api import Browser, BrowserContext, sync_playwright
from rich.console import Console


class Visit(NamedTuple):
    """What one visit took."""

    num_files: int
    num_bytes: int
    seconds: float


def main() -> None:
    """Visit the page and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--kilobytes", type=float, default=50.0, help="of the line, in a second")
    parser.add_argument("--latency", type=float, default=100.0, help="of a round trip, in milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    line = {
        "offline": False,
        "latency": arguments.latency,
        "downloadThroughput": arguments.kilobytes * 1000,
        "uploadThroughput": arguments.kilobytes * 1000,
    }
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        rounds = [_round(browser, arguments.url, line) for _ in range(arguments.rounds)]
        browser.close()
    for name, visits in zip(("first visit", "next visit"), zip(*rounds, strict=True), strict=True):
        seconds = statistics.median(visit.seconds for visit in visits)
        Console().print(f"{name}: {visits[0].num_files} files, {visits[0].num_bytes / 1000:.0f} kB, {seconds:.1f} s")


def _round(browser: Browser, url: str, line: dict[str, Any]) -> tuple[Visit, Visit]:
    context = browser.new_context()
    visits = _visit(context, url, line), _visit(context, url, line)
    context.close()
    return visits


def _visit(context: BrowserContext, url: str, line: dict[str, Any]) -> Visit:
    page = context.new_page()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.send("Network.emulateNetworkConditions", line)
    sizes: list[int] = []  # 0 of what the browser had kept
    network.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_function("() => (document.querySelector('#model-name')?.textContent ?? '…') !== '…'")
    seconds = time.perf_counter() - start
    page.wait_for_load_state("networkidle")
    page.close()
    return Visit(sum(size > 0 for size in sizes), sum(sizes), seconds)


if __name__ == "__main__":
    main()

"""The page before the whole house: `headrace up` with the real default model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.e2e.house import House, headrace_up
from tests.model_fixture import smollm2_path

__all__ = ["smollm2_path"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[House]:
    """A running house with SmolLM2."""
    arguments = (f"--model={smollm2_path.name}", f"--model-dir={smollm2_path.parent}")
    # The exact mode: the first token of the question below is a near tie, which int8 products may turn.
    exact = {"HEADRACE_DTYPE": "float32"}
    with headrace_up(tmp_path_factory.mktemp("house"), *arguments, environ=exact) as running:
        yield running


def test_a_conversation_with_the_real_model_streams_remembers_and_hits_the_cache(
    house: House, open_page: OpenPage
) -> None:
    chat = open_page(house.url)
    chat.button("Settings").click()
    chat.page.get_by_label("Temperature").fill("0")
    chat.page.get_by_label("Longest answer").fill("40")
    chat.button("Done").click()
    chat.send("What is the capital of France?")
    expect(chat.answer).to_contain_text("Paris", timeout=60_000)
    expect(chat.bill).to_be_visible(timeout=60_000)
    chat.send("And what is that city known for?")
    expect(chat.turns).to_have_count(2)
    expect(chat.bill).to_be_visible(timeout=60_000)
    told = re.search(r"(\d+) in\D+(\d+) cached", chat.bill.inner_text().replace("\n", " "))
    assert told is not None
    assert int(told[2]) >= 32, "the second prompt begins with the first turn, which is still in the cache"
    chat.page.reload()
    expect(chat.turns).to_have_count(2)
    expect(chat.turns.first.locator(".answer-text")).to_contain_text("Paris")

"""Pictures of earlier turns: no request and no answer is given more of them than it can hold."""

from __future__ import annotations

from typing import Any

import pytest

from cache_svc.history import pictures
from cache_svc.history.items import input_items
from cache_svc.history.keys import Keys, keys_of
from cache_svc.history.pictures import recalled_pictures, show, shown_pictures
from cache_svc.history.records import Said
from wire import codec
from wire.bus import Bus
from wire.errors import InvalidRequestError, NotFoundError
from wire.messages import ChatMessage, Image, ImageRef

pytestmark = pytest.mark.anyio

IMAGES = [Image.of("image/png", data * 100) for data in (b"a", b"b", b"c")]
REFS = [ImageRef(offset=0, digest=image.digest, width=1, height=1) for image in IMAGES]
MESSAGES = [ChatMessage(role="user", images=(ref, REFS[0])) for ref in REFS]
KEYS = keys_of("0123456789abcdef")


@pytest.fixture
async def keys(bus: Bus) -> Keys:
    for image in IMAGES:
        await bus.route.call(KEYS.turns, "HSET", KEYS.turns, b"p:" + image.digest, codec.encode(image))
    return KEYS


async def test_all_are_recalled_each_once_or_the_request_is_refused(bus: Bus, keys: Keys) -> None:
    found = await recalled_pictures(bus.route, keys, MESSAGES, most_bytes=300, param="conversation")
    assert found is not None and found.images == tuple(IMAGES)
    with pytest.raises(InvalidRequestError, match="more than 299 bytes") as refused:
        await recalled_pictures(bus.route, keys, MESSAGES, most_bytes=299, param="conversation")
    assert refused.value.param == "conversation"


async def test_one_that_is_lost_is_told(bus: Bus, keys: Keys) -> None:
    await bus.route.call(keys.turns, "HDEL", keys.turns, b"p:" + IMAGES[1].digest)
    with pytest.raises(NotFoundError, match="not kept any more"):
        await recalled_pictures(bus.route, keys, MESSAGES, most_bytes=1000, param="conversation")
    assert set(await shown_pictures(bus.route, keys, items())) == {IMAGES[0].digest, IMAGES[2].digest}


async def test_an_answer_shows_as_many_as_it_holds(bus: Bus, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_MOST_SHOWN_BYTES", 200)
    known = await shown_pictures(bus.route, keys, items())
    shown = [part["image_url"] for item in show(items(), known) for part in item["content"]]
    assert [url is not None for url in shown] == [True, True, True, True, False, True]


def items() -> list[dict[str, Any]]:
    return input_items(Said(input=tuple(MESSAGES)))

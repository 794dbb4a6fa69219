"""A replica whose model sees: pictures come from the record to its engine, and a bad one fails its request alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.model_svc.house import EOS, House, house, make_model, settings_for
from tests.model_svc.scripted_runner import Script
from tests.model_svc.vision.seeing import Asked, Seeing, save
from wire.bus import Bus
from wire.messages import Image, SamplingParams

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture
def seeing(tmp_path: Path) -> Seeing:
    script = Script()
    path = make_model(tmp_path, script)
    return save(path, vocab_size=script.vocab_size, eos_token_id=EOS)


async def place(home: House, asked: Asked, images: list[Image]) -> None:
    """Place a request whose record holds these pictures."""
    spans = asked.request.prompt.images
    options = {"max_tokens": 5, "sampling": GREEDY, "spans": spans, "images": tuple(images)}
    await home.place(asked.request.request_id, asked.ids, **options)  # type: ignore[arg-type]


async def test_pictures_of_a_record_are_seen_and_a_bad_one_fails_its_request_alone(
    bus: Bus, bus_url: str, seeing: Seeing, tmp_path: Path
) -> None:
    options = {"runner": "model_svc.runner.load:load_runner", "dtype": "float32", "num_blocks": 256}
    good, other = (seeing.request(name, [1, 2, 3], number, [5]) for name, number in (("good", 0), ("other", 1)))
    broken, gone = (seeing.request(name, [1, 2, 3], 0, [6]) for name in ("broken", "gone"))
    noise = msgspec.structs.replace(broken.images[0], data=b"\x89PNG\r\n\x1a\n" + bytes(100))
    async with house(bus, settings_for(tmp_path, bus_url, **options)) as home:
        for asked, images in ((good, good.images), (broken, [noise]), (gone, []), (other, other.images)):
            await place(home, asked, images)
        await home.until(lambda: len(home.failures) == 2)
        await home.until(lambda: home.finish_reason("good") and home.finish_reason("other"))
        for asked in (good, other):
            answer = home.answer(asked.request.request_id)
            wanted = seeing.logprobs(asked, answer).argmax(1).tolist()
            assert answer == wanted
        assert home.answer("good") != home.answer("other")
    failures = {failure.request_id: (failure.code, failure.message) for failure in home.failures}
    assert failures["broken"][0] == failures["gone"][0] == "invalid_request"
    assert "picture 1 (image/png) cannot be decoded" in failures["broken"][1]
    assert "picture 1 of the conversation is no longer there" in failures["gone"][1]

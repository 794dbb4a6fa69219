"""Pictures in requests: taken in every dialect, kept with conversations, else refused by their fields."""

from __future__ import annotations

import base64
import io
import re
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.conversations import ConversationItemList
from PIL import Image as PILImage

from tests.gateway.edge.asks import CHAT, RESPONSES
from tests.ring import MakeRing, Ring
from tests.tiny_model import write_seeing_model
from wire.messages import Image, ImageSpan

pytestmark = pytest.mark.anyio

MESSAGES, TOKENIZE, CONVERSATIONS = "/v1/messages", "/tokenize", "/v1/conversations"


def encoded(size: tuple[int, int] = (40, 30), kind: str = "PNG", color: str = "red", **options: Any) -> bytes:
    file = io.BytesIO()
    PILImage.new("RGB", size, color).save(file, kind, **options)
    return file.getvalue()


def url_of(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


RED, BLUE = encoded(), encoded(color="blue")
HUGE = encoded(kind="GIF").replace(struct.pack("<HH", 40, 30), struct.pack("<HH", 20_000, 20_000))  # says so, no more


@pytest.fixture(scope="module")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_model(tmp_path_factory.mktemp("seeing") / "seeing")


@pytest.fixture
async def ring(make_ring: MakeRing, seeing_model: Path) -> AsyncIterator[Ring]:
    limits: dict[str, Any] = {"max_images": 3, "max_image_bytes": 20_000, "max_image_pixels": 10_000}
    async with make_ring(model_path=seeing_model, **limits) as running:
        yield running


def chat(*parts: Any) -> dict[str, Any]:
    return {"model": "seeing", "messages": [{"role": "user", "content": list(parts)}]}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def part(data: bytes = RED, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(data), **fields}}


async def post(ring: Ring, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await ring.http.post(path, json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def seen(ring: Ring) -> tuple[list[Image], tuple[ImageSpan, ...], str]:
    """The pictures that the replica got last, where they stand, and the prompt with a # for each of them."""
    last = ring.replica.requests[-1]
    assert last.prompt is not None
    vocabulary, ids = ring.replica.vocabulary, last.prompt.token_ids
    marks = {vocabulary.special["<global-img>"]: b"#"}
    words = memoryview(ids).cast("i")
    shown = b"".join(marks.get(one, vocabulary.token_bytes(one)) for one in words)
    return last.images, last.prompt.images, re.sub(r"(<row_\d_col_\d>|\n(?=[<\n]))+\n*#", "#", shown.decode())


async def test_a_chat_request_brings_them_to_the_replica(ring: Ring) -> None:
    await post(ring, CHAT, chat(text("see "), part(detail="low"), text(" and "), part(BLUE), text("?")))
    images, spans, prompt = seen(ring)
    assert [image.data for image in images] == [RED, BLUE]
    assert [span.digest for span in spans] == [image.digest for image in images]
    assert "user\nsee # and #?" in prompt


async def test_one_that_stands_there_twice_travels_once(ring: Ring) -> None:
    await post(ring, CHAT, chat(part(), part()))
    images, spans, _ = seen(ring)
    assert len(images) == 1 and len(spans) == 2


async def test_dialects_say_the_same(ring: Ring) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    block = {"type": "image", "source": source}
    said = {"role": "user", "content": [text("see "), block, text("?")]}
    await post(ring, MESSAGES, {"model": "seeing", "max_tokens": 9, "messages": [said]})
    anthropic = seen(ring)
    parts = [{"type": "input_text", "text": "see "}, {"type": "input_image", "image_url": url_of(RED)}]
    item = {"role": "user", "content": [*parts, {"type": "input_text", "text": "?"}]}
    await post(ring, RESPONSES, {"model": "seeing", "input": [item]})
    responses = seen(ring)
    await post(ring, CHAT, chat(text("see "), part(), text("?")))
    assert anthropic == responses == seen(ring)
    counted = await post(ring, TOKENIZE, chat(text("see "), part(), text("?")))
    prompt = ring.replica.requests[-1].prompt
    assert prompt is not None and counted["count"] == prompt.num_tokens


async def test_a_tools_result_may_hold_one(ring: Ring) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image", "source": source}]}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]}]
    said.append({"role": "user", "content": [result]})
    await post(ring, MESSAGES, {"model": "seeing", "max_tokens": 9, "messages": said})
    assert [image.data for image in seen(ring)[0]] == [RED]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_kinds_are_told_by_their_bytes(ring: Ring, kind: str) -> None:
    data = encoded(kind=kind)
    await post(ring, CHAT, chat({"type": "image_url", "image_url": url_of(data, "image/jpeg")}))
    (image,) = seen(ring)[0]
    assert (image.media_type, image.data) == (f"image/{kind.lower()}", data)


async def test_one_that_a_camera_turned_has_the_size_that_is_looked_at(ring: Ring) -> None:
    exif = PILImage.Exif()
    exif[0x0112] = 6
    for data in (encoded((90, 20), "JPEG", exif=exif), encoded((20, 90), "JPEG")):
        await post(ring, CHAT, chat(part(data)))
    (turned, plain) = ring.replica.requests[-2:]
    assert turned.request.messages[0].images[0].width == plain.request.messages[0].images[0].width == 20


JUNK = base64.b64encode(b"\x89PNG\r\n\x1a\nno picture").decode()
WRONG: list[tuple[str, str]] = [
    ("https://example.com/cat.png", "must be a data: URL that holds the picture"),
    ("file:///etc/passwd", "opens no addresses"),
    ("data:image/png,abc", "must have the form data:image/png;base64"),
    ("data:image/png;base64,a%b", "is not base64"),
    ("data:image/tiff;base64,AAAA", "must be a picture (image/png, image/jpeg, image/webp, image/gif)"),
    (f"data:image/png;base64,{JUNK}", "is no picture that can be read"),
    ("data:image/png;base64,", "is no picture that can be read"),
    (url_of(encoded((200, 51))), "has 200 x 51 pixels; a picture may have 10000"),
    (url_of(HUGE), "has more than can be decoded pixels"),
    ("data:image/png;base64," + "A" * 40_000, "more than 20000 bytes"),
]


@pytest.mark.parametrize(("url", "said"), WRONG, ids=[said[:24] for _, said in WRONG])
async def test_what_cannot_be_taken_is_named_by_its_field(ring: Ring, url: str, said: str) -> None:
    body = chat(text("see"), {"type": "image_url", "image_url": {"url": url}})
    error = (await post(ring, CHAT, body, 400))["error"]
    assert error["param"] == "messages[0].content[1].image_url.url"
    assert said in error["message"]
    assert not ring.replica.requests


async def test_too_many_and_odd_ones_are_named_by_their_fields(ring: Ring) -> None:
    async def refused(path: str, body: dict[str, Any]) -> tuple[str, str]:
        error = (await post(ring, path, body, 400))["error"]
        return error["param"], error["message"]

    where, said = await refused(CHAT, chat(*[part()] * 4))
    assert where == "messages[0].content[3].image_url.url" and "one picture too many" in said
    where, _ = await refused(CHAT, chat(part(detail="huge")))
    assert where == "messages[0].content[0].image_url.detail"
    system = {"model": "seeing", "messages": [{"role": "system", "content": [part()]}]}
    where, said = await refused(CHAT, system)
    assert where == "messages[0].content[0]" and "not here" in said
    item = {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}
    where, said = await refused(RESPONSES, {"model": "seeing", "input": [item]})
    assert where == "input[0].content[0].file_id" and "no files are kept" in said
    response = await ring.http.post(
        MESSAGES,
        json={
            "model": "seeing",
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}
            ],
        },
    )
    assert response.status_code == 400 and "messages[0].content[0].source.type" in response.text


async def test_what_a_model_reads_is_listed(ring: Ring) -> None:
    (model,) = (await ring.http.get("/v1/models")).json()["data"]
    assert model["architecture"]["input_modalities"] == ["text", "image"]


async def input_of(ring: Ring, *parts: Any, **fields: Any) -> dict[str, Any]:
    content = [
        {"type": "input_text", "text": one}
        if isinstance(one, str)
        else {"type": "input_image", "image_url": url_of(one), "detail": "auto"}
        for one in parts
    ]
    return await post(ring, RESPONSES, {"model": "seeing", "input": [{"role": "user", "content": content}], **fields})


async def test_a_conversation_keeps_them_for_the_next_prompt_and_for_the_page(ring: Ring) -> None:
    conversation = (await post(ring, CONVERSATIONS, {}))["id"]
    await input_of(ring, "see ", RED, conversation=conversation)
    first = ring.replica.requests[-1].prompt
    await input_of(ring, "and ", BLUE, conversation=conversation)
    images, spans, prompt = seen(ring)
    assert {image.data for image in images} == {RED, BLUE}
    assert "see #\n" in prompt and "and #\n" in prompt
    second = ring.replica.requests[-1].prompt
    assert first is not None and second is not None
    assert spans[0] == first.images[0]
    assert second.block_hashes.startswith(first.block_hashes)

    path = f"{CONVERSATIONS}/{conversation}/items"
    for query, wanted in (("", None), ("&include[]=message.input_image.image_url", url_of(RED))):
        answer = (await ring.http.get(f"{path}?order=asc{query}")).json()
        ConversationItemList.model_validate(answer, strict=True)
        shown = answer["data"][0]["content"]
        assert [one["type"] for one in shown] == ["input_text", "input_image"]
        assert shown[1]["image_url"] == wanted


async def test_a_chain_of_responses_and_references_keep_them(ring: Ring) -> None:
    first = await input_of(ring, "see ", RED)
    await post(ring, RESPONSES, {"model": "seeing", "input": "more", "previous_response_id": first["id"]})
    assert [image.data for image in seen(ring)[0]] == [RED]
    items = (await ring.http.get(f"{RESPONSES}/{first['id']}/input_items")).json()["data"]
    await post(ring, RESPONSES, {"model": "seeing", "input": [{"type": "item_reference", "id": items[0]["id"]}]})
    assert [image.data for image in seen(ring)[0]] == [RED]
    counted = {"model": "seeing", "input": "more", "previous_response_id": first["id"]}
    assert (await post(ring, f"{RESPONSES}/input_tokens", counted))["input_tokens"] > 20


async def test_items_put_into_a_conversation_may_hold_them(ring: Ring) -> None:
    message = {"role": "user", "content": [{"type": "input_image", "image_url": url_of(RED)}]}
    conversation = (await post(ring, CONVERSATIONS, {"items": [message]}))["id"]
    other = {"role": "user", "content": [{"type": "input_image", "image_url": url_of(BLUE)}]}
    await post(ring, f"{CONVERSATIONS}/{conversation}/items", {"items": [other]})
    await post(ring, RESPONSES, {"model": "seeing", "input": "which?", "conversation": conversation})
    assert {image.data for image in seen(ring)[0]} == {RED, BLUE}


async def num_kept(ring: Ring, data: bytes) -> int:
    """In how many values of the server a picture's bytes are, those of requests left out."""
    found = 0
    for key in await ring.bus.route.call("", "KEYS", "*turns*"):
        fields = await ring.bus.route.call(key, "HGETALL", key)
        found += sum(data in value for value in fields[1::2])
    return found


async def test_each_is_kept_once_and_goes_with_the_last_that_holds_it(ring: Ring) -> None:
    conversation = (await post(ring, CONVERSATIONS, {}))["id"]
    for _ in range(2):
        await input_of(ring, RED, conversation=conversation)
    await input_of(ring, BLUE, conversation=conversation)
    path = f"{CONVERSATIONS}/{conversation}/items"
    items = [one["id"] for one in (await ring.http.get(f"{path}?order=asc")).json()["data"] if one["role"] == "user"]
    assert (await num_kept(ring, RED), await num_kept(ring, BLUE)) == (1, 1)
    await ring.http.delete(f"{path}/{items[0]}")
    assert (await num_kept(ring, RED), await num_kept(ring, BLUE)) == (1, 1)
    await ring.http.delete(f"{path}/{items[1]}")
    assert (await num_kept(ring, RED), await num_kept(ring, BLUE)) == (0, 1)
    await ring.http.delete(f"{CONVERSATIONS}/{conversation}")
    assert await num_kept(ring, BLUE) == 0

    first = await input_of(ring, RED)
    second = await post(ring, RESPONSES, {"model": "seeing", "input": "more", "previous_response_id": first["id"]})
    await ring.http.delete(f"{RESPONSES}/{first['id']}")
    assert await num_kept(ring, RED) == 1, "what a later answer builds on stays"
    await ring.http.delete(f"{RESPONSES}/{second['id']}")
    assert await num_kept(ring, RED) == 0

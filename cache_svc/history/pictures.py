"""Pictures of stored messages: which ones they are, and their bytes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from cache_svc.history.keys import Keys
from wire import codec
from wire.bus.route import Route
from wire.errors import InvalidRequestError, NotFoundError
from wire.messages import ChatMessage, Image, Images

_MOST_SHOWN_BYTES = 32 * 1024 * 1024  # in one answer; what an edge and its client take at once


def digests_of(messages: Iterable[ChatMessage]) -> list[bytes]:
    """Return the digests of the pictures in messages, each once."""
    return list(dict.fromkeys(image.digest for message in messages for image in message.images))


def words_of(messages: Iterable[ChatMessage], images: Images | None) -> list[bytes]:
    """Return digest, picture, ... for the scripts; those not at hand are empty: kept already, or lost."""
    known = {image.digest: codec.encode(image) for image in images.images} if images is not None else {}
    return [word for digest in digests_of(messages) for word in (digest, known.get(digest, b""))]


def shown_in(items: Iterable[dict[str, Any]]) -> list[bytes]:
    """Return the digests of the pictures in items, each once."""
    return list(dict.fromkeys(part["image_url"] for item in items for part in _pictures(item)))


def show(items: list[dict[str, Any]], known: Mapping[bytes, Image]) -> list[dict[str, Any]]:
    """Put pictures in the place of their digests, as data: URLs; None for those that are not known."""
    for item in items:
        for part in _pictures(item):
            image = known.get(part["image_url"])
            part["image_url"] = _data_url(image) if image is not None else None
    return items


def _pictures(item: dict[str, Any]) -> Iterable[dict[str, Any]]:
    parts = item.get("content") or item.get("output")
    return (part for part in parts if part.get("type") == "input_image") if isinstance(parts, list) else ()


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"


async def found(route: Route, keys: Keys, digests: Iterable[bytes]) -> AsyncIterator[tuple[bytes, Image | None]]:
    """Yield the pictures of these digests; None for those that are not kept. One by one: all may be gigabytes."""
    for digest in digests:
        raw = await route.call(keys.turns, "HGET", keys.turns, b"p:" + digest)
        yield digest, codec.decode(raw, Image) if raw is not None else None


async def shown_pictures(route: Route, keys: Keys, items: Iterable[dict[str, Any]]) -> dict[bytes, Image]:
    """Return the pictures in items by digest, as far as they are kept and fit into one answer."""
    known: dict[bytes, Image] = {}
    left = _MOST_SHOWN_BYTES
    async for digest, image in found(route, keys, shown_in(items)):
        left -= len(image.data) if image is not None else 0
        if left < 0:
            break
        if image is not None:
            known[digest] = image
    return known


async def recalled_pictures(
    route: Route, keys: Keys, messages: Iterable[ChatMessage], *, most_bytes: int, param: str
) -> Images | None:
    """Return all pictures of messages, None if they have none.

    Raises NotFoundError if one is not kept any more, or InvalidRequestError if they have more bytes than that.
    """
    images: list[Image] = []
    left = most_bytes
    async for _, image in found(route, keys, digests_of(messages)):
        if image is None:
            raise NotFoundError("A picture of what was said before is not kept any more.", param=param)
        left -= len(image.data)
        if left < 0:
            reason = f"{param}: the pictures of what was said before have more than {most_bytes} bytes."
            raise InvalidRequestError(reason, param=param)
        images.append(image)
    return Images(images=tuple(images)) if images else None

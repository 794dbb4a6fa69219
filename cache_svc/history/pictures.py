"""Pictures of stored messages: which ones they are, and their bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from cache_svc.history.keys import Keys
from wire import codec
from wire.bus.route import Route
from wire.errors import NotFoundError
from wire.messages import ChatMessage, Image, Images


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
    return (part for part in parts if part["type"] == "input_image") if isinstance(parts, list) else ()


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"


async def find_pictures(route: Route, keys: Keys, digests: Iterable[bytes]) -> dict[bytes, Image]:
    """Return pictures by digest; those that are not kept are left out."""
    digests = list(digests)
    if not digests:
        return {}
    found = await route.call(keys.turns, "HMGET", keys.turns, *(b"p:" + digest for digest in digests))
    images = [codec.decode(raw, Image) for raw in found if raw is not None]
    return {image.digest: image for image in images}


async def recalled_pictures(route: Route, keys: Keys, messages: Iterable[ChatMessage], param: str) -> Images | None:
    """Return all pictures of messages, None if they have none. Raises NotFoundError if one is not kept any more."""
    digests = digests_of(messages)
    if not digests:
        return None
    found = await find_pictures(route, keys, digests)
    if len(found) < len(digests):
        raise NotFoundError("A picture of what was said before is not kept any more.", param=param)
    return Images(images=tuple(found.values()))

"""What the history shows to clients: conversations' items, responses, input items, in OpenAI's shapes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cache_svc.history.items import all_items, input_items, named, output_items
from cache_svc.history.keys import Keys
from cache_svc.history.pictures import show, shown_pictures
from cache_svc.history.records import Meta, Said
from cache_svc.history.scripts.items import FIND_ITEM, PAGE_ITEMS
from cache_svc.history.scripts.turns import READ_TURN, UNDER_WAY
from cache_svc.history.store import find, missing, now_ms, off_loop
from wire import codec, topics
from wire.bus.records import TURN_FOLLOWS
from wire.bus.route import Route
from wire.errors import NotFoundError
from wire.messages import Images, Request


class Reader:
    """Reads stored turns for clients."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def items(
        self, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: str, pictures: bool = False
    ) -> dict[str, Any]:
        """Return a page of a conversation's items, `pictures`: with these. Raises NotFoundError for it or `after`."""
        keys = find(conversation_id, "conversation")
        state, *rest = await self._route.run(
            PAGE_ITEMS,
            (keys.head, keys.turns, keys.order, keys.at),
            *(tenant, conversation_id, after or "", order, limit + 2),  # every turn has an item; one is skipped into
        )
        if state == b"unknown":
            raise missing(after or "", "after")
        if state != b"ok":
            raise missing(conversation_id, "conversation")
        items = await off_loop(sum(map(len, rest)), lambda: _items(rest, newest_first=order == "desc"))
        return await self._shown(keys, _page(items, limit=limit, after=after), pictures)

    async def _shown(
        self, keys: Keys, page: dict[str, Any], pictures: bool, sent: Images | None = None
    ) -> dict[str, Any]:
        """Put pictures into a page of items, if they are wanted: those `sent` with them, else those that are kept."""
        items, known = page["data"], {}
        if pictures and sent is not None:
            known = {image.digest: image for image in sent.images}
        elif pictures:
            known = await shown_pictures(self._route, keys, items)
        num_bytes = sum(len(image.data) for image in known.values())
        return {**page, "data": await off_loop(num_bytes, lambda: show(items, known))}

    async def response(self, tenant: str, response_id: str) -> dict[str, Any]:
        """Return a response as the client got it; one that is under way as far as it is known."""
        keys = find(response_id, "response_id")
        state, *rest = await self._turn(keys, tenant, response_id)
        if state == b"pending":
            return await self._begun(response_id, rest[0].decode())
        if state != b"ok":
            raise missing(response_id, "response_id")
        said, meta = codec.decode(rest[0], Said), codec.decode(rest[1], Meta)
        shown = meta.response or {
            "id": response_id,
            "object": "response",
            "created_at": int(meta.created_at),
            "model": meta.model,
            "status": said.status,
            "usage": meta.usage,
        }
        return {**shown, "output": output_items(said)}

    async def _begun(self, response_id: str, mark: str) -> dict[str, Any]:
        """Return a response that is under way, by the record of its request."""
        partition, _, request_id = mark.partition("/")
        key = topics.job_record(int(partition), request_id)
        raw, cancelled, ended, placement = await self._route.call(
            key, "HMGET", key, "request", "cancelled", "ended", "placement"
        )
        if raw is None:
            raise missing(response_id, "response_id")
        request = await off_loop(len(raw), lambda: codec.decode(raw, Request))
        in_background = bool(request.reply.get("background"))
        over = cancelled is not None or ended
        if over and not in_background and cancelled != TURN_FOLLOWS:  # its client knows, and nothing will be stored
            raise missing(response_id, "response_id")
        status = ""  # also of one that was stopped: what it said is being stored
        if in_background:
            status = "cancelled" if cancelled is not None else "queued" if placement is None else ""
        begun = {"id": response_id, "object": "response", "created_at": int(request.created_at), "model": request.model}
        return {
            **begun,
            **request.reply,
            "status": status or "in_progress",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }

    async def running(self, conversation_id: str) -> list[str]:
        """Return the responses of the background that are under way in a conversation, oldest first."""
        parts = await self._route.run(UNDER_WAY, (find(conversation_id, "conversation").pending,), now_ms())
        found = []
        for turn, mark in zip(parts[0::2], parts[1::2], strict=True):
            with suppress(NotFoundError):
                begun = await self._begun(turn.decode(), mark.decode())
                if begun.get("background") and begun["status"] != "cancelled":
                    found.append(turn.decode())
        return found

    async def input_items(
        self, tenant: str, response_id: str, *, limit: int, after: str | None, order: str, pictures: bool = False
    ) -> dict[str, Any]:
        """Return a page of the items that went into a response, also one under way. `pictures`: with these."""
        keys = find(response_id, "response_id")
        state, *rest = await self._turn(keys, tenant, response_id)
        sent: Images | None = None
        if state == b"pending":
            said, sent = await self._asked(response_id, rest[0].decode())
        elif state == b"ok":
            said = codec.decode(rest[0], Said)
        else:
            raise missing(response_id, "response_id")
        items = input_items(said)
        if order == "desc":
            items.reverse()
        return await self._shown(keys, _page(items, limit=limit, after=after), pictures, sent)

    async def _asked(self, response_id: str, mark: str) -> tuple[Said, Images | None]:
        """Return what was said to get a response that is under way, by the record of its request."""
        partition, _, request_id = mark.partition("/")
        key = topics.job_record(int(partition), request_id)
        raw, images = await self._route.call(key, "HMGET", key, "request", "images")
        if raw is None:
            raise missing(response_id, "response_id")
        num_bytes = len(raw) + len(images or b"")
        request, sent = await off_loop(
            num_bytes, lambda: (codec.decode(raw, Request), codec.decode(images, Images) if images else None)
        )
        return Said(input=named(request.messages, response_id)), sent

    async def item(
        self, tenant: str, item_id: str, conversation_id: str = "", *, pictures: bool = False
    ) -> dict[str, Any]:
        """Return a stored item, of any turn or of one conversation's. Raises NotFoundError."""
        keys = find(item_id, "item_id")
        found = await self._route.run(
            FIND_ITEM, (keys.head, keys.turns, keys.order, keys.at), tenant, conversation_id, item_id
        )
        for item in _items(found or [], newest_first=False):
            if item["id"] == item_id:
                shown = await self._shown(keys, {"data": [item]}, pictures)
                return dict(shown["data"][0])
        raise missing(item_id, "item_id")

    async def _turn(self, keys: Keys, tenant: str, turn_id: str) -> list[bytes]:
        found: list[bytes] = await self._route.run(
            READ_TURN, (keys.head, keys.turns, keys.pending), tenant, turn_id, now_ms()
        )
        return found


def _items(parts: list[bytes], *, newest_first: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for turn_id, raw in zip(parts[0::2], parts[1::2], strict=True):
        items = all_items(codec.decode(raw, Said), turn_id.decode()) if raw else []
        found += reversed(items) if newest_first else items
    return found


def _page(items: list[dict[str, Any]], *, limit: int, after: str | None) -> dict[str, Any]:
    """Cut a page out of items that begin at or before the item `after`."""
    if after is not None:
        place = next((number for number, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise missing(after, "after")
        items = items[place + 1 :]
    return listing(items[:limit], has_more=len(items) > limit)


def listing(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a list object; OpenAI's ids of an empty list are texts too."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}

"""The operations behind /v1/conversations and /v1/responses/{id}, by the name in a HistoryCall.

A tenant sees its own objects only; another's is not found. A call that is repeated (claimed from a dead desk) has the
same outcome, but for a deletion, which then finds nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from cache_svc.history.catalog import Catalog
from cache_svc.history.items import input_items, named, title_of
from cache_svc.history.pictures import show, words_of
from cache_svc.history.reading import Reader, listing
from cache_svc.history.records import Said
from cache_svc.history.rewrite import Rewriter
from cache_svc.history.scripts.conversations import CREATE, DELETE_CONVERSATION, UPDATE
from cache_svc.history.scripts.turns import DELETE_TURN
from cache_svc.history.store import Store, find, missing, now_ms, off_loop
from wire import codec, topics
from wire.bus.route import Route
from wire.errors import ConflictError, InvalidRequestError, NotFoundError
from wire.messages import ChatMessage, ConversationRef, HistoryCall, Holder, Images, Job, Request

Operation = Callable[[HistoryCall, int], Awaitable[Any]]

_MAX_LIMIT = 100


class Calls:
    """Answers HistoryCalls."""

    def __init__(self, route: Route, store: Store, catalog: Catalog, rewriter: Rewriter) -> None:
        self._route = route
        self._store = store
        self._catalog = catalog
        self._rewriter = rewriter
        self._reader = Reader(route)
        self._ttl_ms = store.ttl_ms
        self._operations: dict[str, Operation] = {
            "create_conversation": self._create_conversation,
            "get_conversation": self._get_conversation,
            "update_conversation": self._update_conversation,
            "delete_conversation": self._delete_conversation,
            "list_conversations": self._list_conversations,
            "list_items": self._list_items,
            "add_items": self._add_items,
            "get_item": self._get_item,
            "delete_item": self._delete_item,
            "find_items": self._find_items,
            "get_response": self._get_response,
            "delete_response": self._delete_response,
            "list_input_items": self._list_input_items,
            "recall": self._recall,
        }

    async def answer(self, call: HistoryCall, partition: int) -> Any:
        """Return the result of a call that came on this partition's stream.

        Raises NotFoundError, ConflictError or InvalidRequestError.
        """
        operation = self._operations.get(call.op)
        if operation is None:
            raise InvalidRequestError(f"The history desk knows no operation {call.op!r}.", param="op")
        return await operation(call, partition)

    async def _create_conversation(self, call: HistoryCall, partition: int) -> Any:
        conversation_id: str = call.args["id"]
        keys = find(conversation_id, "conversation")
        messages = named(msgspec.convert(call.args.get("items") or [], tuple[ChatMessage, ...]), conversation_id)
        said, words = Said(input=messages), words_of(messages, _images_of(call))
        now = now_ms()
        await self._route.run(
            CREATE,
            (keys.head, keys.turns, keys.order, keys.at),
            *(call.tenant, conversation_id, now, self._ttl_ms, title_of(messages)),
            msgspec.msgpack.encode(call.args.get("metadata") or {}),
            codec.encode(said) if messages else b"",
            len(words),
            *words,
            *(item["id"] for item in input_items(said)),
        )
        await self._catalog.touch(call.tenant, partition, conversation_id, now)
        return await self._get_conversation(call, partition)

    async def _get_conversation(self, call: HistoryCall, partition: int) -> Any:
        del partition
        found = await self._catalog.read(call.tenant, call.args["id"])
        if found is None:
            raise missing(call.args["id"], "conversation")
        return {**found, "running": await self._reader.running(call.args["id"])}

    async def _update_conversation(self, call: HistoryCall, partition: int) -> Any:
        conversation_id: str = call.args["id"]
        keys = find(conversation_id, "conversation")
        now = now_ms()
        found = await self._route.run(
            UPDATE,
            (keys.head, keys.turns, keys.order, keys.at),
            *(call.tenant, conversation_id, now, self._ttl_ms),
            msgspec.msgpack.encode(call.args.get("metadata") or {}),
        )
        if not found:
            raise missing(conversation_id, "conversation")
        await self._catalog.touch(call.tenant, partition, conversation_id, now)
        return await self._get_conversation(call, partition)

    async def _delete_conversation(self, call: HistoryCall, partition: int) -> Any:
        conversation_id: str = call.args["id"]
        keys = find(conversation_id, "conversation")
        turns = await self._route.run(DELETE_CONVERSATION, keys, call.tenant, conversation_id)
        if turns is None:
            raise missing(conversation_id, "conversation")
        for turn in turns:
            await self._forget(partition, turn.decode())
        await self._catalog.remove(call.tenant, partition, conversation_id)
        self._rewriter.ask()
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def _list_conversations(self, call: HistoryCall, partition: int) -> Any:
        page = _page_of(call)
        data, has_more = await self._catalog.page(call.tenant, partition, limit=page["limit"], after=page["after"])
        return listing(data, has_more=has_more)

    async def _list_items(self, call: HistoryCall, partition: int) -> Any:
        del partition
        shows = bool(call.args.get("pictures"))
        return await self._reader.items(call.tenant, call.args["id"], pictures=shows, **_page_of(call))

    async def _get_item(self, call: HistoryCall, partition: int) -> Any:
        await self._get_conversation(call, partition)
        shows = bool(call.args.get("pictures"))
        return await self._reader.item(call.tenant, call.args["item_id"], call.args["id"], pictures=shows)

    async def _add_items(self, call: HistoryCall, partition: int) -> Any:
        conversation_id, turn_id = call.args["id"], call.args["turn"]
        messages = named(msgspec.convert(call.args["items"], tuple[ChatMessage, ...]), turn_id)
        said = await self._store.add(call.tenant, conversation_id, turn_id, messages, _images_of(call))
        await self._catalog.touch(call.tenant, partition, conversation_id, now_ms())
        return listing(show(input_items(said), {}), has_more=False)

    async def _delete_item(self, call: HistoryCall, partition: int) -> Any:
        await self._get_conversation(call, partition)
        for turn in await self._store.remove(call.tenant, call.args["id"], call.args["item_id"]):
            await self._forget(partition, turn)
        self._rewriter.ask()
        return await self._get_conversation(call, partition)

    async def _find_items(self, call: HistoryCall, partition: int) -> Any:
        del partition
        return [await self._reader.item(call.tenant, item_id, pictures=True) for item_id in call.args["ids"]]

    async def _get_response(self, call: HistoryCall, partition: int) -> Any:
        response_id: str = call.args["id"]
        with suppress(NotFoundError):
            return await self._reader.response(call.tenant, response_id)
        await self._meet(call.tenant, partition, response_id)
        return await self._reader.response(call.tenant, response_id)

    async def _delete_response(self, call: HistoryCall, partition: int) -> Any:
        response_id: str = call.args["id"]
        keys = find(response_id, "response_id")
        running = int(bool(call.args.get("running")))
        where = (keys.head, keys.turns, keys.order, keys.pending)
        outcome = await self._route.run(DELETE_TURN, where, call.tenant, response_id, running)
        if not outcome:
            await self._meet(call.tenant, partition, response_id)
            outcome = await self._route.run(DELETE_TURN, where, call.tenant, response_id, running)
        if outcome == 2:
            raise ConflictError(f"Response {response_id!r} is still being generated.", param="response_id")
        if not outcome:
            raise missing(response_id, "response_id")
        await self._forget(partition, response_id)
        self._rewriter.ask()
        return {"id": response_id, "object": "response", "deleted": True}

    async def _meet(self, tenant: str, partition: int, response_id: str) -> None:
        """Mark the turn of a job that has not passed this desk, if there is one: its client may know of it already.

        A call overtakes a job that another desk reads, or that a desk held which died. Raises NotFoundError.
        """
        key = topics.job_record(partition, response_id)
        raw, holder = await self._route.call(key, "HMGET", key, "request", "holder")
        if raw is None or holder is None:
            raise missing(response_id, "response_id")
        request = await off_loop(len(raw), lambda: codec.decode(raw, Request))
        known, ref = codec.decode(holder, Holder), request.conversation
        if request.tenant != tenant or ref is None or not ref.store or ref.response_id != response_id:
            raise missing(response_id, "response_id")
        job = Job(
            request_id=response_id, partition=partition, model=request.base, edge=known.edge, deadline=known.deadline
        )
        await self._store.admit(job, tenant, ref, request.model)

    async def _forget(self, partition: int, response_id: str) -> None:
        """Remove what else holds the words of a response: the record of its request, and its events."""
        record = topics.job_record(partition, response_id)
        await self._route.call(record, "UNLINK", record, topics.events(partition, response_id))

    async def _list_input_items(self, call: HistoryCall, partition: int) -> Any:
        del partition
        shows = bool(call.args.get("pictures"))
        return await self._reader.input_items(call.tenant, call.args["id"], pictures=shows, **_page_of(call))

    async def _recall(self, call: HistoryCall, partition: int) -> Any:
        """Return what a request that goes on would be given, as it is now."""
        del partition
        args = call.args
        before, turn = args.get("conversation_id"), args.get("previous_response_id")
        ref = ConversationRef(conversation_id=before, previous_response_id=turn, store=False, response_id="")
        return await self._store.recall(call.tenant, ref, args["model"], wait=False)


def _images_of(call: HistoryCall) -> Images | None:
    """Return the pictures that came with items."""
    given = call.args.get("images")
    return codec.decode(given, Images) if given else None


def _page_of(call: HistoryCall) -> dict[str, Any]:
    limit = call.args.get("limit") or 20
    order = call.args.get("order") or "desc"
    if not isinstance(limit, int) or not 1 <= limit <= _MAX_LIMIT:
        raise InvalidRequestError(f"limit must be a number from 1 to {_MAX_LIMIT}.", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order must be 'asc' or 'desc'.", param="order")
    return {"limit": limit, "after": call.args.get("after"), "order": order}

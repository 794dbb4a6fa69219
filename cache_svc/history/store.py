"""Conversations and chains of responses in Redis: recalled for a request, extended by a turn.

Every change is one script in one slot, so two writers to one conversation lose nothing and a repeat changes nothing.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from cache_svc.history import token_ids
from cache_svc.history.editing import without
from cache_svc.history.items import input_items, items_of, named, output_items, title_of
from cache_svc.history.keys import Keys, keys_of, root_of
from cache_svc.history.pictures import words_of
from cache_svc.history.recalling import ids_of, recalled_chain, recalled_conversation
from cache_svc.history.records import Meta, Said, TokenIds
from cache_svc.history.scripts.items import FIND_ITEM, REPLACE_SAID
from cache_svc.history.scripts.recall import LINK, RECALL_CHAIN, RECALL_CONVERSATION
from cache_svc.history.scripts.turns import ADMIT, STORE
from wire import codec
from wire.bus.route import Route
from wire.errors import ConflictError, InternalError, NotFoundError
from wire.messages import ChatMessage, ConversationRef, Images, Job, Recalled, Turn
from wire.threads import in_thread

T = TypeVar("T")

_NAMES = {
    "after": "Object",
    "conversation": "Conversation",
    "item_id": "Item",
    "previous_response_id": "Previous response",
    "response_id": "Response",
}
_MAX_TRIES = 5
_ON_THE_LOOP_BYTES = 128 * 1024  # decoding runs at about 200 MB/s; more than this leaves the event loop


class Pending(NamedTuple):
    """Turns that are admitted and not stored yet, by the requests ("partition/id") that will bring them."""

    requests: tuple[str, ...]


class Stored(enum.Enum):
    """What became of a turn."""

    GONE = 0
    NEW = 1
    KNOWN = 2


def now_ms() -> int:
    """Return Unix time in milliseconds."""
    return int(time.time() * 1000)


def find(object_id: str, param: str) -> Keys:
    """Return the keys where an object of this id would be. Raises NotFoundError for what cannot be an id of ours."""
    root = root_of(object_id)
    if root is None:
        raise missing(object_id, param)
    return keys_of(root)


def missing(object_id: str, param: str) -> NotFoundError:
    """Return the error for an object that is not there, expired, or another tenant's."""
    return NotFoundError(f"{_NAMES[param]} with id {object_id[:80]!r} not found.", param=param)


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Run work whose time goes with `num_bytes`, in a thread if it would hold the event loop up."""
    return work() if num_bytes < _ON_THE_LOOP_BYTES else await in_thread(work)


class Store:
    """The history of all conversations. `ttl_s` counts from the last write to a conversation or chain."""

    def __init__(self, route: Route, *, ttl_s: float) -> None:
        self._route = route
        self.ttl_ms = int(ttl_s * 1000)

    async def admit(self, job: Job, tenant: str, ref: ConversationRef, model: str) -> None:
        """Mark the turn that this job will bring (`model`'s), so that whoever continues it knows to wait.

        Raises NotFoundError when what it continues is not there.
        """
        keys = find(*continued(ref))
        if ref.response_id and root_of(ref.response_id) != root_of(continued(ref)[0]):
            raise InternalError("the response's id does not begin with the root of what it continues")
        parent = ref.previous_response_id or "-"
        request = f"{job.partition}/{job.request_id}"
        arguments = (parent, ref.response_id, int(job.deadline * 1000), now_ms(), request, model)
        found = await self._route.run(ADMIT, (keys.head, keys.pending), tenant, ref.conversation_id or "", *arguments)
        if not found:
            raise missing(*continued(ref))

    async def recall(self, tenant: str, ref: ConversationRef, model: str, *, wait: bool) -> Recalled | Pending:
        """Return what was said before, or Pending if it may be complete after a short while (only with `wait`).

        Raises NotFoundError, or ConflictError when the response to continue is still being generated.
        """
        if ref.conversation_id is not None:
            return await self._recall_conversation(tenant, ref, model, wait=wait)
        parts = await self._chain(tenant, ref.previous_response_id or "", wait=wait)
        if isinstance(parts, Pending):
            return parts
        return await off_loop(sum(map(len, parts)), lambda: recalled_chain(parts, model))

    async def _recall_conversation(
        self, tenant: str, ref: ConversationRef, model: str, *, wait: bool
    ) -> Recalled | Pending:
        assert ref.conversation_id is not None
        keys = find(ref.conversation_id, "conversation")
        own = ref.response_id if ref.store else ""
        state, *parts = await self._route.run(
            RECALL_CONVERSATION,
            (keys.head, keys.turns, keys.order, keys.pending),
            *(tenant, ref.conversation_id, own, now_ms(), int(wait)),
        )
        if state == b"pending":
            return Pending(tuple(request.decode() for request in parts))
        if state != b"ok":
            raise missing(ref.conversation_id, "conversation")
        found = await off_loop(sum(map(len, parts)), lambda: recalled_conversation(parts, model))
        return msgspec.structs.replace(found, conversation_id=ref.conversation_id, version=len(parts) // 4)

    async def _chain(
        self, tenant: str, turn_id: str, *, wait: bool = False, only_ids: bool = False
    ) -> list[bytes] | Pending:
        keys = find(turn_id, "previous_response_id")
        state, *parts = await self._route.run(
            RECALL_CHAIN,
            (keys.head, keys.turns, keys.pending),
            *(tenant, turn_id, now_ms(), int(wait), int(only_ids)),
        )
        if state == b"pending":
            return Pending(tuple(request.decode() for request in parts))
        if state == b"conflict":
            raise ConflictError(f"Response {turn_id!r} is still being generated.", param="previous_response_id")
        if state != b"ok":
            raise missing(turn_id, "previous_response_id")
        found: list[bytes] = parts
        return found

    async def store(self, turn: Turn, images: Images | None = None) -> Stored:
        """Store a turn and its pictures, once: the first of the highest attempt counts."""
        ref = turn.conversation
        keys = find(*continued(ref))
        said = _said(turn)
        in_order = turn.status not in ("failed", "cancelled") or any(_has_content(message) for message in turn.output)
        can_be_found = in_order or ref.conversation_id is None
        item_ids = [item["id"] for item in input_items(said) + output_items(said)] if can_be_found else []
        meta = Meta(
            model=turn.model,
            created_at=turn.created_at,
            usage={} if turn.response else turn.usage,
            response={name: value for name, value in turn.response.items() if name != "output"},
        )
        parent, is_seen = await self._parent(turn, keys)
        ids = await self._packed_ids(turn, parent) if is_seen else None
        words = words_of(said.input, images)
        outcome = await self._route.run(
            STORE,
            keys,
            *(turn.tenant, ref.conversation_id or "", parent, turn.response_id),
            *(turn.attempt, now_ms(), self.ttl_ms, int(in_order), title_of(turn.input)),
            *(codec.encode(said), codec.encode(meta), codec.encode(ids) if ids else b""),
            len(words),
            *words,
            *item_ids,
        )
        return Stored(outcome)

    async def add(
        self, tenant: str, conversation_id: str, turn_id: str, messages: tuple[ChatMessage, ...], images: Images | None
    ) -> Said:
        """Put messages behind a conversation that no request has said, once. Raises NotFoundError."""
        said, words = Said(input=messages), words_of(messages, images)
        outcome = await self._route.run(
            STORE,
            find(conversation_id, "conversation"),
            *(tenant, conversation_id, "?", turn_id),  # behind whatever is the last then
            *(0, now_ms(), self.ttl_ms, 1, title_of(messages)),
            *(codec.encode(said), codec.encode(Meta(model="")), b""),
            len(words),
            *words,
            *(item["id"] for item in input_items(said)),
        )
        if not outcome:
            raise missing(conversation_id, "conversation")
        return said

    async def remove(self, tenant: str, conversation_id: str, item_id: str) -> list[str]:
        """Take an item out of a conversation; return its turn and all later ones, whose prompts held it.

        Raises NotFoundError, or ConflictError if others write all the time.
        """
        keys = find(conversation_id, "conversation")
        four = (keys.head, keys.turns, keys.order, keys.at)
        for _ in range(_MAX_TRIES):
            found = await self._route.run(FIND_ITEM, four, tenant, conversation_id, item_id)
            left = without(codec.decode(found[1], Said), item_id) if found and found[1] else None
            if left is None:
                raise missing(item_id, "item_id")
            empty = int(not left.input and not left.output)
            arguments = (found[0], found[1], codec.encode(left), empty, item_id, now_ms(), title_of(left.input))
            words = words_of(left.input, None)
            turns = await self._route.run(REPLACE_SAID, four, tenant, conversation_id, *arguments, *words)
            if turns is not None:
                return [turn.decode() for turn in turns]
        raise ConflictError(f"Item {item_id!r} is being changed by others.", param="item_id")

    async def _parent(self, turn: Turn, keys: Keys) -> tuple[str, bool]:
        """Return the turn that this one was said after, and whether it is what the prompt saw last."""
        if turn.conversation.conversation_id is None:
            return turn.conversation.previous_response_id or "-", True
        parent, is_seen = await self._route.run(LINK, (keys.turns, keys.order, keys.pending), turn.response_id)
        return parent.decode(), bool(is_seen)

    async def _packed_ids(self, turn: Turn, parent: str) -> TokenIds | None:
        if not turn.prompt_ids:
            return None
        parent_ids = b""
        if parent not in ("-", "first"):  # given items have no ids
            try:
                parts = await self._chain(turn.tenant, parent, only_ids=True)
            except (NotFoundError, ConflictError):  # deleted meanwhile
                parts = []
            assert not isinstance(parts, Pending)
            parent_ids = token_ids.unpack([ids_of(raw) for raw in parts[1::2]], turn.model)
        dropped = (turn.usage.get("headrace") or {}).get("messages_dropped", 0)
        return token_ids.pack(turn.prompt_ids, parent_ids, turn.model, whole=not dropped)


def continued(ref: ConversationRef) -> tuple[str, str]:
    """Return the id that names the slot, and the field that names the id."""
    if ref.conversation_id is not None:
        return ref.conversation_id, "conversation"
    if ref.previous_response_id is not None:
        return ref.previous_response_id, "previous_response_id"
    return ref.response_id, "response_id"


def _said(turn: Turn) -> Said:
    entered = named(turn.input, turn.response_id)
    answered = named(turn.output, turn.response_id, start=len(entered))
    derived = [item for message in answered for item in items_of(message, turn.status)]
    given = turn.response.get("output")
    # What the client got is kept as it was, but not twice.
    items = tuple(given) if given is not None and given != derived else None
    return Said(input=entered, output=answered, status=turn.status, items=items)


def _has_content(message: ChatMessage) -> bool:
    return bool(message.content or message.reasoning or message.tool_calls)

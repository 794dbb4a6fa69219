"""What the scripts of a recall reply -> the messages that were said, and the token ids of the newest prompt.

A conversation's reply has four parts for each turn, oldest first: its id, its address (which ends with the turn before
it), what was said, and its token ids. A chain's has two, newest first: what was said, and the token ids.
"""

from __future__ import annotations

from cache_svc.history import token_ids
from cache_svc.history.records import Said, TokenIds
from wire import codec
from wire.messages import ChatMessage, Recalled


def recalled_conversation(parts: list[bytes], model: str) -> Recalled:
    """Put a conversation together; its ids are those of the last turn whose prompt saw all turns before it."""
    messages = [_messages(raw) for raw in parts[2::4]]
    ids = [ids_of(raw) for raw in parts[3::4]]
    num_seen, before = 0, b"-"
    for turn, address in zip(parts[0::4], parts[1::4], strict=True):
        if address.rpartition(b" ")[2] != before:
            break
        num_seen, before = num_seen + 1, turn
    packed, covers = b"", 0
    while num_seen and not packed:
        newest = ids[num_seen - 1]
        packed = token_ids.unpack(ids[num_seen - 1 :: -1], model)
        covers = sum(map(len, messages[:num_seen])) if packed and newest is not None and newest.whole else 0
        num_seen -= 1
    return Recalled(messages=tuple(m for turn in messages for m in turn), prompt_ids=packed, covers=covers)


def recalled_chain(parts: list[bytes], model: str) -> Recalled:
    """Put a chain of responses together."""
    ids = [ids_of(raw) for raw in parts[1::2]]
    packed = token_ids.unpack(ids, model)
    messages = tuple(m for raw in reversed(parts[0::2]) for m in _messages(raw))
    covers = len(messages) if packed and ids[0] is not None and ids[0].whole else 0
    return Recalled(messages=messages, prompt_ids=packed, covers=covers)


def ids_of(raw: bytes) -> TokenIds | None:
    """Return a turn's token ids, if they are kept."""
    return codec.decode(raw, TokenIds) if raw else None


def _messages(raw: bytes) -> tuple[ChatMessage, ...]:
    if not raw:
        return ()
    said = codec.decode(raw, Said)
    return said.input + said.output

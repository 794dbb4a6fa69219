"""Bodies of /v1/conversations."""

from __future__ import annotations

import msgspec

from gateway.edge.schema.items import Item


class CreateConversation(msgspec.Struct, kw_only=True):
    """A new conversation, with the items it starts with."""

    metadata: dict[str, str] | None = None
    items: list[Item] | None = None


class CreateItems(msgspec.Struct, kw_only=True):
    """Items that are put behind a conversation."""

    items: list[Item]


class UpdateConversation(msgspec.Struct, kw_only=True):
    """New metadata of a conversation; null takes it away."""

    metadata: dict[str, str] | None

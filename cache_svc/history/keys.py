"""Names of the history's keys: a conversation and all responses that grew from it lie in one slot.

Ids of conversations and responses carry their root, the first 16 characters after the prefix; the root is the slot's
hash tag. So one script can read or write a whole conversation, also in a cluster, and no id needs to be looked up.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from wire.topics import PREFIX

_ROOT_LENGTH = 16
_OURS = re.compile(r"[a-z]+_([0-9A-Za-z]{16})[0-9A-Za-z]{0,64}")


class Keys(NamedTuple):
    """The keys of one root.

    `head` (hash): tenant, conversation id, times, title, metadata. `turns` (hash): the parts of each turn, by a letter
    and the turn's id (see `cache_svc.history.scripts`). `order` (list): the turns of the conversation, oldest first.
    `at` (hash): item id -> turn. `pending` (hash): turns that are admitted and not stored yet.
    """

    head: str
    turns: str
    order: str
    at: str
    pending: str


def root_of(object_id: str) -> str | None:
    """Return the root of an id, or None if it can be no id of ours."""
    found = _OURS.fullmatch(object_id)
    return found[1] if found else None


def keys_of(root: str) -> Keys:
    """Return the keys of a root."""
    tag = f"{PREFIX}:{{c{root}}}"
    return Keys(*(f"{tag}:{name}" for name in Keys._fields))


def catalog(tenant: str, partition: int) -> str:
    """The conversations of a tenant in a partition, a sorted set by time of the last write.

    The tenant stands there as a digest: its name may hold any character.
    """
    digest = hashlib.blake2b(tenant.encode(), digest_size=12).hexdigest()
    return f"{PREFIX}:{{t{digest}}}:conversations:{partition}"

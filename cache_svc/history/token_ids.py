"""Token ids of a chain of turns: each prompt repeats the one before it, so only what is new is kept.

Stored whole, a chain of n turns would take n² space. A turn that does not begin with its parent's ids (context cut,
other instructions) shares what they have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from cache_svc.history.records import TokenIds
from wire.messages import ID_BYTES


def pack(packed_ids: bytes, parent_ids: bytes, model: str, *, whole: bool = True) -> TokenIds:
    """Return the ids as a difference to the parent's."""
    shared = _common_ids(packed_ids, parent_ids)
    return TokenIds(model=model, shared=shared, tail=packed_ids[shared * ID_BYTES :], whole=whole)


def unpack(newest_first: Sequence[TokenIds | None], model: str) -> bytes:
    """Return the packed ids of the newest turn of a chain; b"" if they are not known, or another model's."""
    parts: list[bytes] = []
    wanted: int | None = None  # ids still needed from this turn on; None: all
    for one in newest_first:
        if one is None or one.model != model:
            return b""
        own = one.tail if wanted is None else one.tail[: max(wanted - one.shared, 0) * ID_BYTES]
        parts.append(own)
        wanted = one.shared if wanted is None else min(wanted, one.shared)
        if wanted == 0:
            return b"".join(reversed(parts))
    return b""


def _common_ids(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    while low < high:  # comparing slices is a memcmp: a few µs for 32k ids
        middle = (low + high + 1) // 2
        if one[low * ID_BYTES : middle * ID_BYTES] == other[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low

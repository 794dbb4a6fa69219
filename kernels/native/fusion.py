"""Chain neighbouring calls of a tape, so that threads need not wait for one another between them.

A call may be chained to the one before if it can be cut into the same independent items: rows; a KV head and the
queries of its group.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.native.record import ATTENTION, BY_HEAD, QUANTIZE, RMS_NORM, ROPE, Record

CHAIN = 3  # the longest
_COLUMN = 32


def fuse(records: Sequence[Record]) -> list[Record]:
    """Return the same calls in the same order, some of them chained."""
    fused = list(records)
    for at in range(len(fused)):
        head, *rest = fused[at : at + 3]
        if not rest:
            break
        if head.kind == RMS_NORM and _rows_follow(head, rest[0]):
            fused[at + 1] = rest[0]._replace(chained=True)
        elif head.kind == ROPE and _decode_follows(head, rest[0]):
            fused[at] = head._replace(shape=BY_HEAD)
            fused[at + 1] = rest[0]._replace(shape=BY_HEAD, chained=True)
            if len(rest) == 2 and _heads_follow(rest[0], rest[1]):
                heads = rest[0].numbers[3]
                numbers = (*rest[1].numbers[:3], heads)
                fused[at + 2] = rest[1]._replace(numbers=numbers, shape=BY_HEAD, chained=True)
    return fused


def _rows_follow(norm: Record, call: Record) -> bool:
    """A norm whose rows are rounded next, as they come: experts take theirs from where they stand."""
    rows, width = norm.numbers[:2]
    as_they_come = call.kind == QUANTIZE and not any(call.pointers[3:])
    return as_they_come and call.pointers[0] == norm.pointers[3] and call.numbers[:3] == (rows, width, width)


def _decode_follows(rope: Record, call: Record) -> bool:
    """Attention right after the store, when each sequence has one query: no head sees what another one stored."""
    if call.kind != ATTENTION or call.pointers[:3] != (rope.pointers[0], rope.pointers[6], rope.pointers[7]):
        return False
    T, S, H, K = call.numbers[:4]
    return T == S and rope.numbers[:3] == (T, H, K) and call.numbers[13] == 0


def _heads_follow(attention: Record, call: Record) -> bool:
    """Attention whose result is rounded next, in blocks that do not span groups of heads."""
    T, _, H, K, D = attention.numbers[:5]
    same = call.kind == QUANTIZE and call.pointers[0] == attention.pointers[7]
    return same and call.numbers[:3] == (T, H * D, H * D) and H // K * D % _COLUMN == 0

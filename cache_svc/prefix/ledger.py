"""Keeps the index true to the replicas' KV events: every replica numbers its events, a gap means the truth is lost.

After a gap, or from a replica never heard of, nothing is believed until the replica has sent a full report
(`BlocksStored(reset=True)`); the desk asks for one. So the index may know too little for a moment, never too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from cache_svc.prefix.index import PrefixIndex, split
from wire.block_hash import DIGEST_BYTES
from wire.messages import BlocksEvicted, BlocksStored

_SLICE_BLOCKS = 2048  # about 0.5 ms of index work; a full report of a large cache has a hundred times as many


class Verdict(Enum):
    """What an event is worth: apply it, ignore it, or ask its replica for a full report."""

    APPLY = "apply"
    IGNORE = "ignore"
    ASK = "ask"


class EventLedger:
    """The sequence numbers of each replica's events, in front of the index.

    A report that was asked for and does not come is asked for again after `ask_again_s`.
    """

    def __init__(self, index: PrefixIndex, *, ask_again_s: float = 1.0) -> None:
        self._index = index
        self._ask_again_s = ask_again_s
        self._last: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self.num_gaps = 0

    def judge(self, event: BlocksStored | BlocksEvicted, now: float) -> Verdict:
        """Check an event's number and note it; a full report or a gap clears what was known of the replica."""
        replica_id = event.replica_id
        if isinstance(event, BlocksStored) and event.reset:
            self.forget(replica_id)
            self._last[replica_id] = event.sequence
            return Verdict.APPLY
        last = self._last.get(replica_id)
        if last is not None and event.sequence <= last:  # read twice, or older than the last full report
            return Verdict.IGNORE
        if last is not None and event.sequence == last + 1:
            self._last[replica_id] = event.sequence
            return Verdict.APPLY
        if last is not None:
            self.num_gaps += 1
            self.forget(replica_id)
        return Verdict.ASK if self._should_ask(replica_id, now) else Verdict.IGNORE

    def apply(self, event: BlocksStored | BlocksEvicted) -> Iterator[None]:
        """Bring an event judged APPLY into the index, a slice for each step of the iterator.

        The caller may let others run between two slices; if the replica is forgotten meanwhile, the rest is left out.
        """
        step = _SLICE_BLOCKS * DIGEST_BYTES
        for at in range(0, len(event.hashes), step):
            if self._last.get(event.replica_id) != event.sequence:
                return
            names = split(event.hashes[at : at + step])
            if isinstance(event, BlocksStored):
                self._index.add(event.replica_id, names)
            else:
                self._index.remove(event.replica_id, names)
            yield

    def hear(self, replica_id: str, now: float) -> bool:
        """Take a heartbeat; return whether to ask: a replica may be idle and send no events of its own."""
        return replica_id not in self._last and self._should_ask(replica_id, now)

    def forget(self, replica_id: str) -> None:
        """Drop all that is known of a replica."""
        self._index.drop(replica_id)
        self._last.pop(replica_id, None)
        self._asked_at.pop(replica_id, None)

    def _should_ask(self, replica_id: str, now: float) -> bool:
        asked_at = self._asked_at.get(replica_id)
        if asked_at is not None and now - asked_at < self._ask_again_s:
            return False
        self._asked_at[replica_id] = now
        return True

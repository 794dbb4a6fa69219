"""Where the states of sequences are kept as snapshots and taken up again, for models that have states beside attention.

Three places of a sequence are worth one: where the prompt that others share with it ends (blocks are cached, but no
state behind them), the last full block of its own prompt, and the newest full block of its answer, which the
conversation's next turn goes on from. Steps of prompts end there. Blocks get their names with the snapshot behind them:
without it nobody could use them.
"""

from __future__ import annotations

from model_svc.engine.block_pool import BlockPool
from model_svc.engine.plan import RunnerInfo, SequenceStep
from model_svc.engine.sequence import Sequence
from model_svc.engine.snapshots import Snapshots

_MIN_BLOCKS = 4  # fewer are computed again as fast as one more step takes


class States:
    """What is kept of whom. Without states in the model nobody asks."""

    def __init__(self, info: RunnerInfo, pool: BlockPool) -> None:
        self.snapshots = Snapshots(info.num_snapshots)
        self._pool = pool
        self._num_written = 0
        self._begun: list[int] = []  # snapshots that the step being planned begins with

    def begin(self, seq: Sequence, names: list[bytes], num_cached: int, num_shared: int) -> None:
        """Let a sequence begin behind `num_cached` blocks, of the `num_shared` that are cached without a state."""
        block_size = self._pool.block_size
        seq.restore = self.snapshots.take(names[num_cached - 1]) if num_cached else -1
        seq.state_end = num_cached * block_size
        last = (seq.num_tokens - 1) // block_size
        ends = {count for count in (num_shared, last) if count - num_cached >= _MIN_BLOCKS}
        seq.state_cuts = tuple(count * block_size for count in sorted(ends))
        seq.newest_state = b""

    def leave(self, seq: Sequence) -> None:
        """Let go of what a sequence was to begin with."""
        if seq.restore >= 0:
            self.snapshots.let_go(seq.restore)
            seq.restore = -1

    def limit(self, seq: Sequence, num_tokens: int) -> int:
        """Return how many of the next tokens a step computes, so that it ends where a snapshot is wanted."""
        start = seq.num_computed_tokens
        return next((cut - start for cut in seq.state_cuts if start < cut < start + num_tokens), num_tokens)

    def is_behind(self, seq: Sequence) -> bool:
        """Tell whether a state has taken in tokens that became void: then it is of no more use."""
        return seq.state_end > seq.num_computed_tokens

    def plan(self, seq: Sequence, end: int) -> dict[str, int]:
        """Return what a share up to `end` says of states: where it begins, and where it is kept."""
        said: dict[str, int] = {}
        if seq.restore >= 0:
            said["restore"] = seq.restore
            self._begun.append(seq.restore)
            seq.restore = -1
        seq.state_end = end
        if end % self._pool.block_size == 0 and (end in seq.state_cuts or end >= seq.num_tokens):
            place = self.snapshots.allocate(seq.newest_state)
            if place >= 0:
                said["save"] = place
                self._num_written += 1
        return said

    def planned(self) -> None:
        """Note that the step is planned: what it begins with may be overwritten by later ones."""
        for place in self._begun:
            self.snapshots.let_go(place)
        self._begun.clear()

    def written(self, seq: Sequence, item: SequenceStep, *, good: bool) -> int:
        """Take note of a snapshot whose step was collected; returns behind how many tokens it stands, 0 if not kept."""
        self._num_written -= 1
        if not good:
            self.snapshots.free(item.save)
            return 0
        end = item.start + item.num_tokens
        count = end // self._pool.block_size
        name = seq.hashes(count, self._pool.block_size)[-1]
        self.snapshots.register(item.save, name)
        if seq.newest_state:
            self.snapshots.drop(seq.newest_state)
        seq.newest_state = b"" if end in seq.state_cuts else name
        return end

    def forget(self, seq: Sequence) -> None:
        """Drop the snapshots of a sequence whose numbers are not to be trusted."""
        for name in seq.block_hashes:
            self.snapshots.drop(name)

    def check_invariants(self, running: list[Sequence]) -> None:
        """Assert that snapshots agree with those who hold them."""
        assert not self._begun, "a planned step still holds snapshots"
        self.snapshots.check_invariants([seq.restore for seq in running if seq.restore >= 0], self._num_written)

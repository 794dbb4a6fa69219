"""When what steps said leaves the engine process: at once, in the spare time of the next step, or in company.

Everybody on a token's way to its client needs a core. A step that has all of them is held up by each who wakes in its
middle; so tokens leave when one thread draws and plans and a core is idle. That is a step later at the most. And a wake
costs the same for two tokens as for one: with many answers those of several steps leave together, so few that none
waits 50 ms for company, and with few those of steps so short that nobody can see it. None of this holds for an answer's
first and last tokens, nor for the end of its thinking.
"""

from __future__ import annotations

from model_svc.engine_messages import Progress
from model_svc.pipe import EngineEnd
from model_svc.runner.spare_time import SOON_S, SpareTime
from wire.messages import TokenChunk

CROWD = 8  # answers for each step more; on two cores, who carries the tokens of fewer fits into the steps' spare time

_UNSEEN_S = 0.0075  # less than half of a frame of a screen that shows 60 a second


class Departures:
    """The way out for progress; its order is kept."""

    def __init__(self, pipe: EngineEnd, spare: SpareTime | None, stream_interval: int | None = None) -> None:
        """`stream_interval`: so many steps leave together; None: those of crowds on the step's own cores, as above."""
        self._pipe = pipe
        self._spare = spare
        self._stream_interval = stream_interval
        self._held: list[Progress] = []
        if spare is not None:
            spare.use = self._go_if_due

    def leave(self, progress: Progress, *, more_follows: bool) -> None:
        """Send what a step said, now or behind a later one's products. Raises OSError when the service is gone."""
        self._go_if_due()
        self._held.append(progress)
        if not (more_follows and all(map(_may_wait, progress.chunks))):
            self.let_go()
        elif self._spare is None or not self._spare.is_soon:
            self._go_if_due()

    def let_go(self) -> None:
        """Send what waits."""
        if self._held:
            held, self._held = self._held, []
            self._pipe.send(*held)

    def _go_if_due(self) -> None:
        if len(self._held) >= self._num_steps:
            self.let_go()

    @property
    def _num_steps(self) -> int:
        if self._stream_interval is not None:
            return self._stream_interval
        if self._spare is None or not self._held:
            return 1
        crowd = 1 + min(len(self._held[-1].chunks) // CROWD, self._spare.num_within(SOON_S))
        return max(crowd, self._spare.num_within(_UNSEEN_S))


def _may_wait(chunk: TokenChunk) -> bool:
    return chunk.index > 0 and chunk.finish_reason is None and not chunk.marks

"""When what a step said leaves the engine process: at once, or in the spare time of the next step.

Everybody on a token's way to its client needs a core. A step that has all of them is held up by each who wakes in its
middle; so tokens leave when one thread draws and plans and a core is idle. That is a step later at the most, and never
for an answer's first and last tokens.
"""

from __future__ import annotations

from model_svc.pipe import EngineEnd, Progress
from model_svc.runner.spare_time import SpareTime


class Departures:
    """The way out for progress; its order is kept."""

    def __init__(self, pipe: EngineEnd, spare: SpareTime | None) -> None:
        self._pipe = pipe
        self._spare = spare
        self._held: Progress | None = None
        if spare is not None:
            spare.use = self.let_go

    def leave(self, progress: Progress, *, more_follows: bool) -> None:
        """Send what a step said, now or behind the next one's products. Raises OSError when the service is gone."""
        self.let_go()
        if more_follows and self._spare is not None and self._spare.is_soon and _may_wait(progress):
            self._held = progress
        else:
            self._pipe.send(progress)

    def let_go(self) -> None:
        """Send what waits."""
        held, self._held = self._held, None
        if held is not None:
            self._pipe.send(held)


def _may_wait(progress: Progress) -> bool:
    return all(chunk.index and chunk.finish_reason is None for chunk in progress.chunks)

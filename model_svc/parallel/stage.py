"""One of several stages: a rank with some of the layers, which takes hidden states from the one before it.

What one stage passes on the next one must take, step by step, in the same order and sizes: all stages take the same
plans, so none of them has to ask. Nothing goes against the order of the stages, so no two can wait for each other.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from model_svc.layers.group import Group, least_of


class Stage(Group):
    """Stage `stage` of `stages`, alone with its layers. `data` joins the devices (NCCL or gloo), `control` the hosts.

    On cards both exchanges are queued, as anything else that is launched; on CPUs they are waited for.
    """

    def __init__(self, stage: int, stages: int, data: Any, control: Any, patience_s: float = 120.0) -> None:
        self.stage = stage
        self.stages = stages
        self._data = data
        self._control = control
        self._patience_s = patience_s

    def layers(self, count: int) -> range:
        """Return which of `count` layers are this stage's; the last stages, behind which the head is, have fewer."""
        return range(-(-count * self.stage // self.stages), -(-count * (self.stage + 1) // self.stages))

    def take(self, into: Tensor) -> None:
        """Fill `into` with what the stage before this one passes on."""
        self._data.recv([into], self.stage - 1, 0).wait()

    def pass_on(self, x: Tensor) -> None:
        """Hand `x` to the next stage, as soon as that is ready for it."""
        self._data.send([x.contiguous()], self.stage + 1, 0).wait()

    def least(self, number: int) -> int:
        """Return the smallest of all stages' numbers. Raises RankError when one does not come in time."""
        return least_of(self._control, number, self._patience_s)

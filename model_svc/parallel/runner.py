"""Rank 0's runner, which tells the other ranks of every plan before it takes the plan itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from model_svc.engine.adapter_places import AdapterPlaces, HasAdapterPlaces
from model_svc.engine.plan import Runner, RunnerInfo, StepOutput, StepPlan
from model_svc.layers.group import Group
from model_svc.parallel.adapters import SharedPlaces
from model_svc.parallel.crew import Crew
from model_svc.parallel.orders import Masks, Step, UseIdleTime


class ParallelRunner:
    """One model on several devices. Implements the engine's Runner protocol."""

    def __init__(self, own: Runner, crew: Crew, group: Group) -> None:
        self._own = own
        self._crew = crew
        self._group = group

    @property
    def info(self) -> RunnerInfo:
        """Return the size of the KV pool and the step limits; bytes are those of one rank."""
        return self._own.info

    def submit(self, plan: StepPlan) -> Any:
        """Start a step on all ranks."""
        self._crew.send(Step(plan))
        try:
            return self._own.submit(plan)
        except RuntimeError as error:
            raise self._crew.blame(error) from error

    def mask(self, handle: Any, masks: Mapping[int, bytes]) -> None:
        """Bring the masks that a step waits for."""
        self._crew.send(Masks(dict(masks)))
        self._own.mask(handle, masks)

    def collect(self, handle: Any) -> StepOutput:
        """Wait for a step and return what it drew, here as everywhere."""
        return self._own.collect(handle)

    def use_idle_time(self) -> bool:
        """Do one part of what the start left for later, all ranks together; tells whether more is left."""
        own = getattr(self._own, "use_idle_time", None)
        if own is None:
            return False
        self._crew.send(UseIdleTime())
        return bool(own())

    @cached_property
    def adapter_places(self) -> AdapterPlaces:
        """The room for adapters that come and go, of all ranks."""
        assert isinstance(self._own, HasAdapterPlaces)
        return SharedPlaces(self._own.adapter_places, self._group, self._crew.send, lambda work: work())

    def close(self) -> None:
        """Free the devices and end the other ranks."""
        self._crew.dismiss()
        self._own.close()
        self._group.close()
        self._crew.close()

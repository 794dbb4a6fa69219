"""Rank 0's runner where ranks are stages: the first stage computes in a thread, what the last one drew comes back.

So the engine plans while all stages compute, and waits for nothing but the oldest step's tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import msgspec

from model_svc.engine.adapter_places import AdapterPlaces, HasAdapterPlaces
from model_svc.engine.plan import Runner, RunnerInfo, StepOutput, StepPlan
from model_svc.layers.group import Group, RankError
from model_svc.parallel.adapters import SharedPlaces
from model_svc.parallel.crew import Crew
from model_svc.parallel.orders import Order, Step, UseIdleTime
from model_svc.pipe import Frames

_READ_BYTES = 1 << 18


class PipelineRunner:
    """One model in stages. Implements the engine's Runner protocol."""

    def __init__(self, own: Runner, crew: Crew, group: Group) -> None:
        self._own = own
        self._crew = crew
        self._group = group
        self._first = ThreadPoolExecutor(1, thread_name_prefix="first stage")
        self._first.submit(bool)  # starts the thread, which comes and goes with this runner
        self._outputs: deque[StepOutput] = deque()
        self._frames: Frames[StepOutput] = Frames(msgspec.msgpack.Decoder(StepOutput))
        self._failure: Exception | None = None

    @property
    def info(self) -> RunnerInfo:
        """Return the size of the KV pool and the step limits; bytes are those of the first stage."""
        return self._own.info

    def submit(self, plan: StepPlan) -> int:
        """Start a step: it goes through all stages, behind those before it."""
        self._tell(Step(plan))
        self._first.submit(self._compute, plan)
        return plan.step

    def mask(self, handle: int, masks: Mapping[int, bytes]) -> None:
        """Refuse: no plan hangs on a draw that is in flight."""
        raise AssertionError(f"step {handle} was planned without the masks of {sorted(masks)}")

    def collect(self, handle: int) -> StepOutput:
        """Wait until the last stage has drawn. Its time is taken for that of every stage: a token passes them all."""
        while not self._outputs:
            data = self._crew.answers.recv(_READ_BYTES)
            if not data:
                self._failure = self._crew.blame(self._failure or RankError("the last stage has ended"))
                raise self._failure
            self._outputs += self._frames.feed(data)
        output = self._outputs.popleft()
        assert output.step == handle, "stages answer in the order of the plans"
        return msgspec.structs.replace(output, compute_ms=output.compute_ms * self.info.stages)

    def use_idle_time(self) -> bool:
        """Do one part of what the start left for later, all stages together; tells whether more is left."""
        own = getattr(self._own, "use_idle_time", None)
        if own is None:
            return False
        self._tell(UseIdleTime())
        return bool(self._first.submit(own).result())

    @cached_property
    def adapter_places(self) -> AdapterPlaces:
        """The room for adapters that come and go, of all stages."""
        assert isinstance(self._own, HasAdapterPlaces)
        here = self._first.submit
        return SharedPlaces(self._own.adapter_places, self._group, self._tell, lambda work: here(work).result())

    def close(self) -> None:
        """Free the devices and end the other stages; once one was lost, what a device waits for may never come."""
        self._crew.dismiss()
        self._first.shutdown(wait=self._failure is None)
        if self._failure is None:
            self._own.close()
            self._group.close()
        self._crew.close()

    def _tell(self, order: Order) -> None:
        try:
            self._crew.send(order)
        except Exception as error:
            self._failure = error
            raise

    def _compute(self, plan: StepPlan) -> None:
        try:
            self._own.submit(plan)
        except Exception as error:  # whatever it is, `collect` raises it
            self._failure = self._failure or error
            self._crew.hang_up()

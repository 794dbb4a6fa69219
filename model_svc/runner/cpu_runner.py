"""The fast runner of CPUs: native kernels, and a tape of each class of small steps instead of hundreds of calls.

A class is the number of sequences that decode one token each, or that of tokens where some are guesses, with adapters
or without: met eagerly once, recorded the second time, replayed from then on. Other steps (prompts) run eagerly: their
arithmetic outweighs the calls, and hardly two of them are alike.
"""

from __future__ import annotations

import logging

from torch import Tensor

from kernels.native.library import threads
from kernels.native.record import UnrecordableError
from kernels.native.tape import Arena, Tape
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.batch import DeviceStep
from model_svc.runner.decode_step import TapedStep, is_decode, own_inputs, size_of
from model_svc.runner.draws import draw_all
from model_svc.runner.kept_blocks import Store
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.runner import TorchRunner
from model_svc.runner.sampler import Drawn
from model_svc.runner.spare_time import SpareTime
from model_svc.runner.target_logprobs import asked, score

_log = logging.getLogger(__name__)
_MAX_TAPED_TOKENS = 64
_Class = tuple[int, bool, bool]  # of steps: tokens, whether some are guesses, whether some have adapters


class CpuRunner(TorchRunner):
    """A TorchRunner whose model runs by native kernels."""

    def __init__(self, model: Decoder, cache: KvCache, info: RunnerInfo, store: Store | None = None) -> None:
        super().__init__(model, cache, info, store)
        self._arena = Arena()
        self._tapes: dict[_Class, TapedStep | None] = {}
        self._tapeable = True
        self.spare = SpareTime(threads())

    def _compute(self, plan: StepPlan, items: tuple[SequenceStep, ...]) -> Drawn | None:
        group = self._model.group
        taped = self._tapes.get(self._class_of(plan)) if is_decode(plan) else None
        if taped is not None:
            where, indices = taped.fill(plan, self._slots, self._info.block_size)
            if not group.is_first:
                group.take(taped.inputs)
            self.spare.behind(taped.tape.replay)
            left = taped.left()
        else:
            self.spare.now()
            step = self._laid_out(plan)
            where, indices = step.sample_slots, step.output_index
            left = self._left(step, step.inputs(self._model), plan)
        if not group.is_last:
            group.pass_on(left)
            return None
        return draw_all(left, self._slots, items, where, indices) if len(where) else None

    def _left(self, step: DeviceStep, inputs: Tensor, plan: StepPlan) -> Tensor:
        """Run the model; returns the logits of the rows that sample, or what the next stage is to take."""
        if asked(plan.sequences) and self._model.group.is_last:
            hidden = self._model.forward(inputs, step.batch, self._cache.layers)
            self._scored = score(self._model, hidden, plan.sequences)
            return self._behind(hidden, step)
        key = self._class_of(plan)
        if not self._tapeable or key[0] > _MAX_TAPED_TOKENS or not is_decode(plan):
            return self._eager(step, inputs)
        if key not in self._tapes:
            self._tapes[key] = None
            return self._eager(step, inputs)
        return self._recorded(key, step, inputs)

    def _class_of(self, plan: StepPlan) -> _Class:
        return *size_of(plan), self._slots.ask_for_adapters(plan.sequences)

    def _eager(self, step: DeviceStep, inputs: Tensor) -> Tensor:
        return self._behind(self._model.forward(inputs, step.batch, self._cache.layers), step)

    def _behind(self, hidden: Tensor, step: DeviceStep) -> Tensor:
        if not self._model.group.is_last:
            return hidden
        rows = self._sampling_rows(hidden, step)
        return self._model.logits(rows) if len(rows) else rows

    def _recorded(self, key: _Class, step: DeviceStep, inputs: Tensor) -> Tensor:
        """Run the step on inputs that stay where they are, and note it down."""
        ids, batch = own_inputs(step.ids, step.batch, self._slots.block_tables.shape[1], self._info.block_size)
        own = ids if self._model.group.is_first else inputs.clone()
        tape = Tape(self._arena)
        try:
            with tape.recording():
                hidden = self._model.forward(own, batch, self._cache.layers)
                left = self._model.logits(hidden) if self._model.group.is_last else hidden
        except UnrecordableError as reason:
            _log.info("steps of this model run call by call: %s", reason)
            self._tapeable = False
            return self._eager(step, inputs)
        self._tapes[key] = TapedStep(ids, own, batch, tape, self._arena.lend(left))
        return left

"""The fast runner of CPUs: native kernels, and a tape of each class of small steps instead of hundreds of calls.

A class is the number of sequences that decode one token each, or that of tokens where some are guesses: met eagerly
once, recorded the second time, replayed from then on. Other steps (prompts) run eagerly: their arithmetic outweighs the
calls, and hardly two of them are alike.
"""

from __future__ import annotations

import logging

from torch import Tensor

from kernels.native.library import threads
from kernels.native.record import UnrecordableError
from kernels.native.tape import Arena, Tape
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.batch import DeviceStep, flatten, to_device
from model_svc.runner.decode_step import TapedStep, is_decode, own_inputs, size_of
from model_svc.runner.draws import draw_all
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.runner import TorchRunner
from model_svc.runner.sampler import Drawn
from model_svc.runner.spare_time import SpareTime
from model_svc.runner.target_logprobs import asked, score

_log = logging.getLogger(__name__)
_MAX_TAPED_TOKENS = 64


class CpuRunner(TorchRunner):
    """A TorchRunner whose model runs by native kernels."""

    def __init__(self, model: Decoder, cache: KvCache, info: RunnerInfo) -> None:
        super().__init__(model, cache, info)
        self._arena = Arena()
        self._tapes: dict[tuple[int, bool], TapedStep | None] = {}
        self._tapeable = True
        self.spare = SpareTime(threads())

    def _compute(self, plan: StepPlan, items: tuple[SequenceStep, ...]) -> Drawn | None:
        taped = self._tapes.get(size_of(plan)) if is_decode(plan) else None
        if taped is not None:
            where, indices = taped.fill(plan, self._slots, self._info.block_size)
            self.spare.behind(taped.tape.replay)
            return draw_all(taped.logits(), self._slots, items, where, indices)
        self.spare.now()
        host = flatten(plan, self._slots.num_blocks)
        step = to_device(host, self._slots.block_tables, self._slots.last_token, self._info.block_size)
        logits = self._logits(step, plan)
        if logits is None:
            return None
        return draw_all(logits, self._slots, items, step.sample_slots, step.output_index)

    def _logits(self, step: DeviceStep, plan: StepPlan) -> Tensor | None:
        """Run the model; None if nothing samples."""
        if asked(plan.sequences):
            hidden = self._model.forward(step.ids, step.batch, self._cache.layers)
            self._scored = score(self._model, hidden, plan.sequences)
            return self._model.logits(self._sampling_rows(hidden, step)) if len(step.sample_rows) else None
        key = size_of(plan)
        if not self._tapeable or key[0] > _MAX_TAPED_TOKENS or not is_decode(plan):
            return self._eager(step)
        if key not in self._tapes:
            self._tapes[key] = None
            return self._eager(step)
        return self._recorded(key, step)

    def _eager(self, step: DeviceStep) -> Tensor | None:
        hidden = self._model.forward(step.ids, step.batch, self._cache.layers)
        if not len(step.sample_rows):
            return None
        return self._model.logits(self._sampling_rows(hidden, step))

    def _recorded(self, key: tuple[int, bool], step: DeviceStep) -> Tensor | None:
        """Run the step on inputs that stay where they are, and note it down."""
        ids, batch = own_inputs(step.ids, step.batch, self._slots.block_tables.shape[1], self._info.block_size)
        tape = Tape(self._arena)
        try:
            with tape.recording():
                logits = self._model.logits(self._model.forward(ids, batch, self._cache.layers))
        except UnrecordableError as reason:
            _log.info("steps of this model run call by call: %s", reason)
            self._tapeable = False
            return self._eager(step)
        self._tapes[key] = TapedStep(ids, batch, tape, self._arena.lend(logits))
        return logits

"""The fast runner of CPUs: native kernels, and a tape of each class of small steps instead of hundreds of calls.

A class is the number of sequences that decode one token each: met eagerly once, recorded the second time, replayed from
the third on. Other steps (prompts) run eagerly: their arithmetic outweighs the calls, and hardly two of them are alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kernels.native.record import UnrecordableError
from kernels.native.tape import Arena, Tape
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepPlan
from model_svc.layers.step import StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.batch import DeviceStep, flatten, to_device
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.runner import TorchRunner
from model_svc.runner.sampler import Drawn, draw

_log = logging.getLogger(__name__)
_MAX_TAPED_TOKENS = 64


@dataclass(frozen=True)
class _Taped:
    """A recorded step: the tensors that it reads, and the logits that it leaves."""

    ids: Tensor
    batch: StepBatch
    tape: Tape
    logits: Callable[[], Tensor]


class CpuRunner(TorchRunner):
    """A TorchRunner whose model runs by native kernels."""

    def __init__(self, model: Decoder, cache: KvCache, info: RunnerInfo) -> None:
        super().__init__(model, cache, info)
        self._arena = Arena()
        self._tapes: dict[int, _Taped | None] = {}
        self._tapeable = True

    def _compute(self, plan: StepPlan, items: tuple[SequenceStep, ...]) -> Drawn | None:
        host = flatten(plan, self._slots.num_blocks)
        step = to_device(host, self._slots.block_tables, self._slots.last_token, self._info.block_size)
        logits = self._logits(step)
        if logits is None:
            return None
        drawn = draw(logits, self._slots, items, step.sample_slots, step.output_index)
        self._slots.record(step.sample_slots, drawn.state, drawn.tokens)
        return drawn

    def _logits(self, step: DeviceStep) -> Tensor | None:
        """Run the model; None if nothing samples."""
        key = len(step.ids)
        if not self._tapeable or key > _MAX_TAPED_TOKENS or len(step.sample_rows) < key:
            return self._eager(step)  # every sequence of a taped step has one token, and draws the next
        taped = self._tapes.get(key)
        if taped is not None:
            _fill(taped, step)
            taped.tape.replay()
            return taped.logits()
        if key not in self._tapes:
            self._tapes[key] = None
            return self._eager(step)
        return self._recorded(key, step)

    def _eager(self, step: DeviceStep) -> Tensor | None:
        hidden = self._model.forward(step.ids, step.batch, self._cache.layers)
        if not len(step.sample_rows):
            return None
        return self._model.logits(self._sampling_rows(hidden, step))

    def _recorded(self, key: int, step: DeviceStep) -> Tensor | None:
        """Run the step on inputs that stay where they are, and note it down."""
        ids, batch = _own(step, self._slots.block_tables.shape[1])
        tape = Tape(self._arena)
        try:
            with tape.recording():
                logits = self._model.logits(self._model.forward(ids, batch, self._cache.layers))
        except UnrecordableError as reason:
            _log.info("steps of this model run call by call: %s", reason)
            self._tapeable = False
            return self._eager(step)
        self._tapes[key] = _Taped(ids, batch, tape, self._arena.lend(logits))
        return logits


def _own(step: DeviceStep, max_blocks: int) -> tuple[Tensor, StepBatch]:
    """Copy a step's inputs; the block tables get the width of the longest sequence that may come."""
    source = step.batch
    tables = torch.zeros(len(source.context_lens), max_blocks, dtype=torch.int32)
    tables[:, : source.block_tables.shape[1]] = source.block_tables
    batch = StepBatch(
        positions=source.positions.clone(),
        slot_mapping=source.slot_mapping.clone(),
        block_tables=tables,
        query_start=source.query_start.clone(),
        context_lens=source.context_lens.clone(),
        max_query_len=source.max_query_len,
        max_context_len=max_blocks,
    )
    return step.ids.clone(), batch


def _fill(taped: _Taped, step: DeviceStep) -> None:
    taped.ids.copy_(step.ids)
    for field in fields(StepBatch):
        target, source = getattr(taped.batch, field.name), getattr(step.batch, field.name)
        if field.name == "block_tables":
            target[:, : source.shape[1]] = source
        elif isinstance(target, Tensor):
            target.copy_(source)

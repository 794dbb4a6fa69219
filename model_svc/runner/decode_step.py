"""Decode steps on the CPU, laid out in place: numbers of a plan go straight into the tensors that a tape reads.

At one stream a step takes 4 ms of two cores; the fifty small tensor operations of the general way took 0.7 of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.lora import LoraRows
from kernels.native.tape import Tape
from model_svc.engine.plan import StepPlan
from model_svc.layers.step import StepBatch
from model_svc.runner.slots import Slots


def is_decode(plan: StepPlan) -> bool:
    """Tell whether each sequence has one token and guesses, draws behind all of them, and asks for nothing else."""
    return all(
        item.num_tokens == 1 + item.num_drafts and item.sample and not item.targets and not item.pictures
        for item in plan.sequences
    )


def size_of(plan: StepPlan) -> tuple[int, bool]:
    """Return a step's class: how many tokens it has, and whether some of them are guesses."""
    num_tokens = sum([item.num_tokens for item in plan.sequences])
    return num_tokens, num_tokens > len(plan.sequences)


@dataclass(frozen=True)
class TapedStep:
    """A recorded step: the tensors that it reads, and the logits that it leaves.

    `inputs` are the `ids`, or in a later stage the hidden states that it takes; one before the last leaves such.
    """

    ids: Tensor
    inputs: Tensor
    batch: StepBatch
    tape: Tape
    left: Callable[[], Tensor]

    def fill(self, plan: StepPlan, slots: Slots, block_size: int) -> tuple[Tensor, Tensor]:
        """Lay out a plan of the same size; returns its draws' slots (int64 [T]) and output indices (int32 [T])."""
        items, tables = plan.sequences, slots.block_tables.numpy()
        if self.batch.adapters is not None:
            numbers = [slots.adapter_of.get(item.slot, 0) for item in items]
            lengths = [item.num_tokens for item in items]
            self.batch.adapters.index.numpy()[:] = np.repeat(np.array(numbers, dtype=np.int32), lengths)
        for item in items:
            column = 0 if item.new is not None else slots.num_blocks[item.slot]
            if item.new_blocks:
                tables[item.slot, column : column + len(item.new_blocks)] = item.new_blocks
            slots.num_blocks[item.slot] = column + len(item.new_blocks)
        if len(self.ids) != len(items):
            return self._fill_drafts(plan, tables, block_size)
        where = np.array([item.slot for item in items])
        starts = np.array([item.start for item in items])
        ids = slots.last_token.numpy()[where]
        for n, item in enumerate(items):
            if not item.from_device:
                ids[n] = int.from_bytes(item.token_ids, "little", signed=True)
        columns = starts // block_size
        width = int(columns.max()) + 1
        self.ids.numpy()[:] = ids
        batch = self.batch
        batch.positions.numpy()[:] = starts + [item.rope_shift for item in items]
        batch.context_lens.numpy()[:] = starts + 1
        batch.slots.numpy()[:] = where
        batch.slot_mapping.numpy()[:] = tables[where, columns].astype(np.int64) * block_size + starts % block_size
        batch.block_tables.numpy()[:, :width] = tables[where, :width]
        indices = np.array([item.output_index for item in items], dtype=np.int32)
        return torch.from_numpy(where), torch.from_numpy(indices)

    def _fill_drafts(self, plan: StepPlan, tables: np.ndarray, block_size: int) -> tuple[Tensor, Tensor]:
        items, batch = plan.sequences, self.batch
        where = np.array([item.slot for item in items])
        starts = np.array([item.start for item in items])
        lengths = np.array([item.num_tokens for item in items])
        ends = np.cumsum(lengths)
        behind = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # tokens of the sequence before each row
        rows, positions = np.repeat(where, lengths), np.repeat(starts, lengths) + behind
        shifts = np.repeat([item.rope_shift for item in items], lengths)
        width = int((starts + lengths).max() - 1) // block_size + 1
        self.ids.numpy()[:] = np.frombuffer(b"".join([item.token_ids for item in items]), dtype=np.int32)
        batch.positions.numpy()[:] = positions + shifts
        S = len(items)
        batch.query_start.numpy()[1 : S + 1] = ends
        batch.query_start.numpy()[S + 1 :] = ends[-1]
        batch.context_lens.numpy()[:S] = starts + lengths
        batch.context_lens.numpy()[S:] = 0
        batch.slots.numpy()[:S], batch.slots.numpy()[S:] = where, -1
        batch.slot_mapping.numpy()[:] = (
            tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size
        )
        batch.block_tables.numpy()[:S, :width] = tables[where, :width]
        indices = np.repeat(np.array([item.output_index for item in items]), lengths) + behind
        return torch.from_numpy(rows), torch.from_numpy(indices.astype(np.int32))


def own_inputs(ids: Tensor, batch: StepBatch, max_blocks: int, block_size: int) -> tuple[Tensor, StepBatch]:
    """Copy a step's inputs; the block tables get the width of the longest sequence that may come.

    With guesses there is room for any number of sequences, those that are none having no tokens: one more than tokens,
    so that the tape does not take it for a step of one token each, whose rows need not wait for one another's keys.
    """
    T, S = len(ids), len(batch.context_lens)
    room = S if S == T else T + 1
    tables = torch.zeros(room, max_blocks, dtype=torch.int32)
    tables[:S, : batch.block_tables.shape[1]] = batch.block_tables
    query_start = torch.full((room + 1,), T, dtype=torch.int32)
    query_start[: S + 1] = batch.query_start
    context_lens = torch.zeros(room, dtype=torch.int32)
    context_lens[:S] = batch.context_lens
    slots = torch.full((room,), -1, dtype=torch.int32)
    slots[:S] = batch.slots
    own = StepBatch(
        positions=batch.positions.clone(),
        slot_mapping=batch.slot_mapping.clone(),
        block_tables=tables,
        query_start=query_start,
        context_lens=context_lens,
        slots=slots,
        max_query_len=batch.max_query_len,
        max_context_len=max_blocks * block_size,
        adapters=LoraRows(batch.adapters.index.clone()) if batch.adapters is not None else None,
    )
    return ids.clone(), own

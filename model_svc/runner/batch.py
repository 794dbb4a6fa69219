"""Flatten a step plan into one varlen batch: a single integer buffer that crosses to the device once.

There is a Python loop over sequences, never one over tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.lora import LoraRows
from model_svc.engine.plan import StepPlan
from model_svc.layers.step import StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.draws import draws_of
from model_svc.runner.sight import Shown


@dataclass(frozen=True)
class HostStep:
    """A plan as arrays on the host, int32. S sequences, T tokens, R draws.

    `fed_rows` are the positions in the batch of ids that the device knows (last drawn in `fed_slots`). `new_blocks`
    are (slot, column, block) to be written into the block tables. `adapters` are the numbers of the sequences'
    adapters, `shifts` what their rotary positions are more than indices; each is empty where no sequence has any.
    """

    ids: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    query_start: np.ndarray
    fed_rows: np.ndarray
    fed_slots: np.ndarray
    new_blocks: np.ndarray
    sample_rows: np.ndarray
    sample_slots: np.ndarray
    output_index: np.ndarray
    max_context: int
    adapters: np.ndarray
    shifts: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Return T."""
        return int(self.query_start[-1])


def flatten(plan: StepPlan, num_blocks_of: dict[int, int], adapter_of: Mapping[int, int] | None = None) -> HostStep:
    """Lay out a plan. `num_blocks_of` holds how many blocks each slot's table has; it is brought up to date.

    `adapter_of` holds the numbers of slots' adapters, if one of the plan's has any.
    """
    sequences = plan.sequences
    lengths = np.array([item.num_tokens for item in sequences], dtype=np.int32)
    query_start = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    ids = np.zeros(query_start[-1], dtype=np.int32)
    fed_rows, fed_slots, blocks = [], [], []
    for at, item in zip(query_start.tolist(), sequences, strict=False):
        if item.from_device:
            fed_rows.append(at)
            fed_slots.append(item.slot)
        else:
            ids[at : at + item.num_tokens] = np.frombuffer(item.token_ids, dtype=np.int32)
        column = 0 if item.new is not None else num_blocks_of[item.slot]
        blocks += [(item.slot, column + n, block) for n, block in enumerate(item.new_blocks)]
        num_blocks_of[item.slot] = column + len(item.new_blocks)
    sample_rows, sample_slots, output_index = np.array(draws_of(sequences), dtype=np.int32).reshape(-1, 3).T
    starts = np.array([item.start for item in sequences], dtype=np.int32)
    shifts = np.array([item.rope_shift for item in sequences], dtype=np.int32)
    return HostStep(
        ids=ids,
        slots=np.array([item.slot for item in sequences], dtype=np.int32),
        starts=starts,
        lengths=lengths,
        query_start=query_start,
        fed_rows=np.array(fed_rows, dtype=np.int32),
        fed_slots=np.array(fed_slots, dtype=np.int32),
        new_blocks=np.array(blocks, dtype=np.int32).reshape(-1, 3),
        sample_rows=sample_rows,
        sample_slots=sample_slots,
        output_index=output_index,
        max_context=int((starts + lengths).max(initial=0)),
        adapters=np.array([adapter_of.get(item.slot, 0) for item in sequences] if adapter_of else [], dtype=np.int32),
        shifts=shifts if shifts.any() else shifts[:0],
    )


@dataclass(frozen=True)
class DeviceStep:
    """The same on the device, ready for the model and the sampler. `shown`: the step's pictures, if it has any."""

    ids: Tensor
    batch: StepBatch
    sample_rows: Tensor
    sample_slots: Tensor
    output_index: Tensor
    shown: Shown | None = None

    def inputs(self, model: Decoder) -> Tensor:
        """Return what the model begins with."""
        return model.inputs(self.ids) if self.shown is None else self.shown.inputs(self.ids)


_SENT = (
    *("ids", "slots", "starts", "query_start", "fed_rows", "fed_slots"),
    *("sample_rows", "sample_slots", "output_index", "adapters", "shifts"),
)


def to_device(host: HostStep, block_tables: Tensor, last_token: Tensor, block_size: int) -> DeviceStep:
    """Send a step and derive the rest there: fed-back ids, positions, slot mapping, the sequences' block tables.

    `block_tables` [slots, M] int32 and `last_token` [slots] int32 are the slots' state; new blocks are entered here.
    """
    device = last_token.device
    arrays = [getattr(host, name) for name in _SENT] + [host.new_blocks.T.reshape(-1)]
    whole = torch.from_numpy(np.concatenate(arrays))
    if device.type == "cuda":
        whole = whole.pin_memory().to(device, non_blocking=True)
    parts = dict(zip((*_SENT, "blocks"), torch.split(whole, [len(array) for array in arrays]), strict=True))
    if host.new_blocks.size:
        slot, column, block = parts["blocks"].view(3, -1)
        block_tables[slot.long(), column.long()] = block
    ids = parts["ids"]
    if host.fed_rows.size:
        ids[parts["fed_rows"].long()] = last_token[parts["fed_slots"].long()]
    starts, query_start, slots = parts["starts"], parts["query_start"], parts["slots"].long()
    num_lengths = query_start[1:] - query_start[:-1]
    sequence = torch.repeat_interleave(
        torch.arange(len(host.slots), device=device), num_lengths.long(), output_size=host.num_tokens
    )
    positions = torch.arange(host.num_tokens, device=device) - query_start[sequence] + starts[sequence]
    columns = torch.div(positions, block_size, rounding_mode="floor")
    width = -(-host.max_context // block_size)
    slot_mapping = block_tables[slots[sequence], columns].long() * block_size + positions % block_size
    batch = StepBatch(
        positions=positions + parts["shifts"][sequence] if host.shifts.size else positions,
        slot_mapping=slot_mapping,
        block_tables=block_tables[slots, :width],
        query_start=query_start,
        context_lens=starts + num_lengths,
        slots=parts["slots"],
        max_query_len=int(host.lengths.max(initial=0)),
        max_context_len=host.max_context,
        adapters=LoraRows(parts["adapters"][sequence]) if host.adapters.size else None,
    )
    return DeviceStep(ids, batch, parts["sample_rows"].long(), parts["sample_slots"].long(), parts["output_index"])

"""The slots' state as one integer matrix on the device, so that one launch reads it all and one copy changes it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch

from kernels.step_inputs import LAST_TOKEN, PARAMS, SEED, TABLE, TOP_K
from model_svc.engine.plan import SequenceStep
from model_svc.runner.slots import Slots
from model_svc.runner.staging import Staging

_NUM_PARAMS = 6
_ROW = struct.Struct(f"<iq{_NUM_PARAMS}f")  # what lies from TOP_K on, before the table
_NEWCOMERS = 16  # sequences with a full table whose changes travel in one copy


class DeviceSlots(Slots):
    """`state` [slots, TABLE + M] int32; the other tensors are views of it. Changes gather until `flush`.

    They travel through a ring of `num_buffers` pinned buffers: pinning memory anew took 0.1 to 0.2 ms of a first token.
    """

    def __init__(
        self, num_slots: int, vocab_size: int, max_blocks: int, device: torch.device, num_buffers: int = 1
    ) -> None:
        super().__init__(num_slots, vocab_size, 0, device)
        width = TABLE + max_blocks + max_blocks % 2
        self.state = torch.zeros(num_slots, width, dtype=torch.int32, device=device)
        self.last_token = self.state[:, LAST_TOKEN]
        self.top_k = self.state[:, TOP_K]
        self.seeds = self.state[:, SEED : SEED + 2].view(torch.int64)[:, 0]
        self.params = self.state[:, PARAMS : PARAMS + _NUM_PARAMS].view(torch.float32).T
        self.block_tables = self.state[:, TABLE:]
        self._changes: list[tuple[int, np.ndarray]] = []  # where they begin in the flat state, int32 values
        self._room = min(num_slots, _NEWCOMERS) * width
        self._staging = Staging(3 * self._room, num_buffers, device)  # int64 places, then int32 values

    def enter_blocks(self, sequences: Sequence[SequenceStep], block_size: int) -> list[int]:
        """Note the new blocks of a step; returns each sequence's new block at its start, or -1.

        That one (the usual case of an answer that grows) travels with the step and needs no change of its own.
        """
        entered = [-1] * len(sequences)
        for n, item in enumerate(sequences):
            if not item.new_blocks and item.new is None:
                continue
            column = 0 if item.new is not None else self.num_blocks[item.slot]
            self.num_blocks[item.slot] = column + len(item.new_blocks)
            if len(item.new_blocks) == 1 and column == item.start // block_size:
                entered[n] = item.new_blocks[0]
            elif item.new_blocks:
                self._change(item.slot, TABLE + column, np.array(item.new_blocks, dtype=np.int32))
        return entered

    def flush(self) -> None:
        """Send the changes gathered since the last call."""
        pending: list[tuple[int, np.ndarray]] = []
        size = 0
        for change in self._changes:
            if size + len(change[1]) > self._room:
                self._send(pending, size)
                pending, size = [], 0
            pending.append(change)
            size += len(change[1])
        if pending:
            self._send(pending, size)
        self._changes.clear()

    def _send(self, changes: list[tuple[int, np.ndarray]], size: int) -> None:
        buffer = self._staging.array(3 * size)
        places, values = buffer[: 2 * size].view(np.int64), buffer[2 * size :]
        at = 0
        for begin, new in changes:
            end = at + len(new)
            places[at:end] = np.arange(begin, begin + len(new))
            values[at:end] = new
            at = end
        self._staging.send(3 * size)
        there = self._staging.device
        self.state.view(-1).index_copy_(0, there[: 2 * size].view(torch.int64), there[2 * size : 3 * size])

    def _write(self, slot: int, params: tuple[float, ...], top_k: int, seed: int) -> None:
        self._change(slot, TOP_K, np.frombuffer(_ROW.pack(top_k, seed, *params), dtype=np.int32))

    def _change(self, slot: int, column: int, values: np.ndarray) -> None:
        self._changes.append((slot * self.state.shape[1] + column, values))

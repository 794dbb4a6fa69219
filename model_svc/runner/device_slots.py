"""The slots' state as one integer matrix on the device, so that one launch reads it all and one copy changes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels.step_inputs import LAST_TOKEN, PARAMS, SEED, TABLE, TOP_K
from model_svc.engine.plan import SequenceStep
from model_svc.runner.slots import Slots
from model_svc.runner.staging import send

_NUM_PARAMS = 6


class DeviceSlots(Slots):
    """`state` [slots, TABLE + M] int32; the other tensors are views of it. Changes gather until `flush`."""

    def __init__(self, num_slots: int, vocab_size: int, max_blocks: int, device: torch.device) -> None:
        super().__init__(num_slots, vocab_size, 0, device)
        self.state = torch.zeros(num_slots, TABLE + max_blocks + max_blocks % 2, dtype=torch.int32, device=device)
        self.last_token = self.state[:, LAST_TOKEN]
        self.top_k = self.state[:, TOP_K]
        self.seeds = self.state[:, SEED : SEED + 2].view(torch.int64)[:, 0]
        self.params = self.state[:, PARAMS : PARAMS + _NUM_PARAMS].view(torch.float32).T
        self.block_tables = self.state[:, TABLE:]
        self._changes: list[np.ndarray] = []

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
        if not self._changes:
            return
        changes = send(np.concatenate(self._changes, axis=1), self.device)
        self.state.view(-1).index_copy_(0, changes[0].long(), changes[1])
        self._changes.clear()

    def _write(self, slot: int, params: tuple[float, ...], top_k: int, seed: int) -> None:
        row = np.empty(1 + 2 + _NUM_PARAMS, dtype=np.int32)
        row[0] = top_k
        row[1:3] = np.array([seed], dtype=np.int64).view(np.int32)
        row[3:] = np.array(params, dtype=np.float32).view(np.int32)
        self._change(slot, TOP_K, row)

    def _change(self, slot: int, column: int, values: np.ndarray) -> None:
        begin = slot * self.state.shape[1] + column
        self._changes.append(np.stack([np.arange(begin, begin + len(values), dtype=np.int32), values]))

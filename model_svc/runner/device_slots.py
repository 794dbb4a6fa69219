"""The slots' state as one integer matrix on the device, so that one launch reads it all and one copy changes it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch

from kernels.step_inputs import LAST_TOKEN, PARAMS, SEED, TABLE, TOP_K
from model_svc.engine.plan import SequenceStep
from model_svc.runner.slots import Slots
from model_svc.runner.staging import PinnedRing
from wire.messages import pack_ids

_NUM_PARAMS = 6
_TOP_K_AND_SEED = struct.Struct("<iq")
_ROW_BYTES = 4 * (TABLE - TOP_K)  # up to the table, so that a newcomer's row and table are one piece
_NEWCOMERS = 16  # sequences with a full table whose changes fit a buffer


class DeviceSlots(Slots):
    """`state` [slots, TABLE + M] int32; the other tensors are views of it. Changes gather until `flush`.

    They travel through a ring of `num_buffers` pinned buffers, each piece by a copy of its own: a first token waits for
    one copy, which takes 0.2 ms less than pinning memory anew or scattering.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        max_blocks: int,
        device: torch.device,
        num_buffers: int = 1,
        adapters: Sequence[str] = (),
    ) -> None:
        super().__init__(num_slots, vocab_size, 0, device, adapters)
        width = TABLE + max_blocks + max_blocks % 2
        self.state = torch.zeros(num_slots, width, dtype=torch.int32, device=device)
        self.last_token = self.state[:, LAST_TOKEN]
        self.top_k = self.state[:, TOP_K]
        self.seeds = self.state[:, SEED : SEED + 2].view(torch.int64)[:, 0]
        self.params = self.state[:, PARAMS : PARAMS + _NUM_PARAMS].view(torch.float32).T
        self.block_tables = self.state[:, TABLE:]
        self._flat = self.state.view(-1)
        self._rows: dict[int, bytes] = {}  # of newcomers, until their blocks are known
        self._changes: list[tuple[int, bytes]] = []  # where they begin in the flat state, packed int32
        self._room = min(num_slots, _NEWCOMERS) * width
        self._ring = PinnedRing(self._room, num_buffers, device)

    def enter_blocks(self, sequences: Sequence[SequenceStep], block_size: int) -> list[int]:
        """Note the new blocks of a step; returns each sequence's new block at its start, or -1.

        That one (the usual case of an answer that grows) travels with the step and needs no change of its own.
        """
        entered = [-1] * len(sequences)
        for n, item in enumerate(sequences):
            blocks = item.new_blocks
            if not blocks and item.new is None:
                continue
            column = 0 if item.new is not None else self.num_blocks[item.slot]
            self.num_blocks[item.slot] = column + len(blocks)
            if len(blocks) == 1 and column == item.start // block_size:
                entered[n], blocks = blocks[0], ()
            if item.new is not None:
                self._change(item.slot, TOP_K, self._rows.pop(item.slot) + pack_ids(blocks))
            elif blocks:
                self._change(item.slot, TABLE + column, pack_ids(blocks))
        return entered

    def flush(self) -> None:
        """Send the changes gathered since the last call."""
        if not self._changes:
            return
        (buffer, array), at = self._ring.next(), 0
        for begin, packed in self._changes:
            values = np.frombuffer(packed, dtype=np.int32)
            end = at + len(values)
            if end > self._room:
                self._ring.done()
                (buffer, array), at, end = self._ring.next(), 0, len(values)
            array[at:end] = values
            self._flat[begin : begin + len(values)].copy_(buffer[at:end], non_blocking=True)
            at = end
        self._ring.done()
        self._changes.clear()

    def _write(self, slot: int, params: tuple[float, ...], top_k: int, seed: int) -> None:
        with np.errstate(over="ignore"):  # what a float32 cannot hold becomes infinite
            numbers = np.array(params, dtype=np.float32).tobytes()
        packed = _TOP_K_AND_SEED.pack(top_k, seed) + numbers + pack_ids([self.adapter_of.get(slot, 0)])
        self._rows[slot] = packed.ljust(_ROW_BYTES, b"\0")

    def _change(self, slot: int, column: int, packed: bytes) -> None:
        self._changes.append((slot * self.state.shape[1] + column, packed))

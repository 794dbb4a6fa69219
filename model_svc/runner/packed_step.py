"""A step plan as the one integer buffer that `kernels.step_inputs` unpacks, padded to the sizes of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernels.prefill_attention import UNCUT_KEYS
from kernels.step_inputs import packed_size
from model_svc.engine.plan import SequenceStep


class StepShape(NamedTuple):
    """How many tokens and sequences a step has, padding included, and whether each sequence has one token.

    `checks` > 0: guesses are checked, so all tokens' hidden states are wanted; no sequence has more tokens than that.
    `short`: not all have one token, and no context is longer than `UNCUT_KEYS`, which attention has a faster form for.
    `draws`: the step's draws belong to it, as nobody wants special ones. `adapters`: one of the sequences has an
    adapter, so that products add what it says.
    """

    num_tokens: int
    num_sequences: int
    decode: bool
    checks: int = 0
    short: bool = False
    draws: bool = False
    adapters: bool = False

    @property
    def size(self) -> int:
        """How many integers the step takes."""
        return packed_size(self.num_tokens, self.num_sequences)


def shape_of(sequences: Sequence[SequenceStep]) -> StepShape:
    """Return the exact shape of a step."""
    num_tokens = sum([item.num_tokens for item in sequences])
    if num_tokens == len(sequences):
        return StepShape(num_tokens, num_tokens, decode=True)
    short = max([item.start + item.num_tokens for item in sequences]) <= UNCUT_KEYS
    return StepShape(num_tokens, len(sequences), decode=False, short=short)


def pack(
    sequences: Sequence[SequenceStep], shape: StepShape, blocks: Sequence[int], line: int, into: np.ndarray
) -> None:
    """Fill `into`; `blocks` holds each sequence's new block at its start, or -1 (see `DeviceSlots.enter_blocks`).

    `line` is that of `staging.Returns` where the step's tokens will be.
    """
    T, S = shape.num_tokens, shape.num_sequences
    n = len(sequences)
    ids, sequence, rest = into[:T], into[T : 2 * T], into[2 * T :]
    slots, starts, begins = rest[:S], rest[S : 2 * S], rest[2 * S : 3 * S + 1]
    entered, outputs, shifts = (rest[k * S + 1 : (k + 1) * S + 1] for k in (3, 4, 5))
    rest[6 * S + 1] = line
    if shape.decode:
        num_tokens = n
        ids[:n] = [-1 if item.from_device else int.from_bytes(item.token_ids, "little") for item in sequences]
        sequence[:n] = np.arange(n)
        begins[: n + 1] = np.arange(n + 1)
    else:
        lengths = np.array([item.num_tokens for item in sequences], dtype=np.int32)
        begins[0] = 0
        np.cumsum(lengths, out=begins[1 : n + 1])
        num_tokens = int(begins[n])
        sequence[:num_tokens] = np.repeat(np.arange(n, dtype=np.int32), lengths)
        for item, at in zip(sequences, begins[:n].tolist(), strict=True):
            if item.from_device:
                ids[at] = -1
            else:
                ids[at : at + item.num_tokens] = np.frombuffer(item.token_ids, dtype=np.int32)
    slots[:n] = [item.slot for item in sequences]
    starts[:n] = [item.start for item in sequences]
    entered[:n] = blocks
    outputs[:n] = [item.output_index if item.sample else -1 for item in sequences]
    shifts[:n] = [item.rope_shift for item in sequences]
    ids[num_tokens:], sequence[num_tokens:] = 0, -1
    slots[n:], starts[n:], begins[n + 1 :], entered[n:], outputs[n:], shifts[n:] = -1, 0, num_tokens, -1, -1, 0

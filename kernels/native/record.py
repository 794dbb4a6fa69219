"""Calls of native kernels as records of plain numbers: run at once, and noted down while a tape is recording.

The layout is that of `Op` in src/ops.h.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.native.library import library, threads

_NUMBERS, _FLOATS, _POINTERS = 24, 4, 12
LAYOUT = struct.Struct(f"<4i{_NUMBERS}q{_FLOATS}f{_POINTERS}Q")

QUANTIZE, LINEAR, RMS_NORM, ACTIVATION, ROPE, ATTENTION, MERGE, EMBEDDING, SAMPLE, FINITE = range(10)
ROUTE, EXPERT_ORDER, EXPERT_SUM, LORA_SHRINK, LORA_EXPAND = range(10, 15)
CAUSAL_CONV, GATED_DELTA, GATED_NORM, SELECTIVE_SCAN = range(15, 19)
BY_ROW, BY_HEAD, BY_COLUMN = range(3)


class Record(NamedTuple):
    """One call: what kernel, its numbers, floats and pointers, and how its work is cut."""

    kind: int
    numbers: tuple[int, ...]
    pointers: tuple[int, ...]
    floats: tuple[float, ...] = ()
    shape: int = BY_ROW
    chained: bool = False

    def packed(self) -> bytes:
        """Return the record as the C side reads it."""
        return LAYOUT.pack(
            self.kind, self.shape, self.chained, 0,
            *self.numbers, *(0,) * (_NUMBERS - len(self.numbers)),
            *self.floats, *(0.0,) * (_FLOATS - len(self.floats)),
            *self.pointers, *(0,) * (_POINTERS - len(self.pointers)),
        )  # fmt: skip


class Recorder(Protocol):
    """Something that notes calls down while they run."""

    def note(self, records: Sequence[Record], tensors: Sequence[Tensor | None]) -> None:
        """Take notice of calls that use the memory of `tensors`."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory that stays valid for as long as the notes do."""
        ...


class UnrecordableError(RuntimeError):
    """A step does something that cannot be replayed."""


recorder: Recorder | None = None


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return uninitialised memory for a kernel's result."""
    return torch.empty(shape, dtype=dtype) if recorder is None else recorder.empty(shape, dtype)


def call(records: Sequence[Record], tensors: Sequence[Tensor | None]) -> None:
    """Run kernels in order. `tensors` are all whose memory the records point to."""
    if recorder is not None:
        recorder.note(records, tensors)
    library().run(b"".join([record.packed() for record in records]), len(records), threads())


def refuse(reason: str) -> None:
    """Say that what follows must not end on a tape. Raises UnrecordableError while one is recording."""
    if recorder is not None:
        raise UnrecordableError(reason)


def pointer(tensor: Tensor | None) -> int:
    """Return a tensor's address, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()

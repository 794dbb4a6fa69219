"""A step's calls, recorded once and replayed by one call from Python.

One stream's step is some three hundred small calls; made one by one from Python they cost more than their arithmetic.
A tape holds the native calls as records and anything else that torch did in between as it was called, so that model
code needs to know nothing of it. What may change between replays is the content of tensors, never their place or shape.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.native import record
from kernels.native.fusion import CHAIN, fuse
from kernels.native.library import library, threads
from kernels.native.record import Record, UnrecordableError

_ALIGN = 64


class Arena:
    """Memory for results while a tape is recorded: what nobody holds any more is given out again.

    Only after a few more calls, though: items of chained calls run interleaved, so what one of a chain writes must not
    lie where another one reads. Tapes of one model may share an arena, as only one of them runs at a time.
    """

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []
        self._users: list[weakref.ref[np.ndarray]] = []
        self._freed_at: dict[int, int] = {}  # buffer -> `clock` when its last user went
        self.clock = 0  # native calls noted

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor in a free buffer, or in a new one."""
        size = max(prod(shape) * dtype.itemsize, 1)
        fitting = [n for n in self._free() if self._buffers[n].nbytes >= size]
        if fitting:
            at = min(fitting, key=lambda n: self._buffers[n].nbytes)
        else:
            at = len(self._buffers)
            whole = 1 << (size - 1).bit_length()  # few sizes, so that larger classes do not each bring new buffers
            raw = np.zeros(whole + _ALIGN, dtype=np.uint8)
            start = -raw.ctypes.data % _ALIGN
            self._buffers.append(raw[start : start + whole])
        # torch holds this view for as long as any tensor on its memory lives, and nobody else does.
        view = self._buffers[at][:size]
        self._freed_at.pop(at, None)
        user = weakref.ref(view, lambda _: self._freed_at.update({at: self.clock}))
        self._users[at:] = [user, *self._users[at + 1 :]]
        return torch.from_numpy(view).view(dtype).view(shape)

    def lend(self, like: Tensor) -> Callable[[], Tensor]:
        """Return what makes `like` anew: its memory is free for other tapes until then."""
        address, shape, dtype = like.data_ptr(), like.shape, like.dtype
        for buffer in self._buffers:
            offset = address - buffer.ctypes.data
            if 0 <= offset < buffer.nbytes:
                part = buffer[offset : offset + like.nbytes]
                return lambda: torch.from_numpy(part).view(dtype).view(shape)
        return lambda: like

    def owns(self, tensor: Tensor) -> bool:
        """Tell whether a tensor lies in one of the buffers."""
        address = tensor.data_ptr()
        return any(0 <= address - buffer.ctypes.data < buffer.nbytes for buffer in self._buffers)

    def _free(self) -> Iterator[int]:
        return (n for n, clock in self._freed_at.items() if self.clock - clock >= CHAIN)


class _Calls:
    """Native calls without anything in between, packed for the C side."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._buffer = ctypes.create_string_buffer(0)
        self._count = 0

    def close(self) -> None:
        packed = b"".join(item.packed() for item in fuse(self.records))
        self._buffer = ctypes.create_string_buffer(packed, len(packed))
        self._count = len(self.records)

    def __call__(self) -> None:
        library().run_at(ctypes.addressof(self._buffer), self._count, threads())


class Tape:
    """Records while `recording()` is entered; `replay()` does it all again."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._parts: list[Callable[[], None]] = []
        self._kept: list[Any] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note down what runs inside. Raises UnrecordableError for what cannot be replayed."""
        if record.recorder is not None:
            raise UnrecordableError("another tape is recording")
        record.recorder = self
        try:
            with _Watch(self):
                yield
        finally:
            record.recorder = None
        for part in self._parts:
            if isinstance(part, _Calls):
                part.close()

    def replay(self) -> None:
        """Run everything again, on what its inputs hold now."""
        for part in self._parts:
            part()

    def note(self, records: Sequence[Record], tensors: Sequence[Tensor | None]) -> None:
        """Append native calls."""
        if not self._parts or not isinstance(self._parts[-1], _Calls):
            self._parts.append(_Calls())
        calls = self._parts[-1]
        assert isinstance(calls, _Calls)
        calls.records += records
        self._arena.clock += len(records)
        # Memory of the arena is safe to give out again, as order is kept; anything else must stay.
        self._kept += [tensor for tensor in tensors if tensor is not None and not self._arena.owns(tensor)]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory for a result."""
        return self._arena.empty(shape, dtype)

    def note_torch(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Append a torch call; what it returned is filled again by each replay."""
        self._kept.append((args, kwargs, result))
        targets = [] if function._schema.is_mutable else _tensors(result)

        def run() -> None:
            again = function(*args, **kwargs)
            for target, value in zip(targets, _tensors(again) if targets else [], strict=True):
                target.copy_(value)

        self._parts.append(run)


class _Watch(TorchDispatchMode):
    """Sees each torch operation. Views and fresh memory need no replay, values read on the host forbid one."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no: skipping what nobody compiles would import the compiler, which takes two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._schema.returns and not _tensors(result):
            raise UnrecordableError(f"{func} reads a value on the host")
        if func._schema.is_mutable or not (func.is_view or _is_fresh_memory(func) or _only_views(args, result)):
            self._tape.note_torch(func, args, kwargs, result)
        return result


def _is_fresh_memory(function: Any) -> bool:
    return str(function).startswith("aten.empty")


def _only_views(args: Any, result: Any) -> bool:
    """Tell whether a call (`.float()` of a float tensor, say) gave back its argument."""
    return isinstance(result, Tensor) and any(result is item for item in args)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [item for item in result if isinstance(item, Tensor)] if isinstance(result, list | tuple) else []

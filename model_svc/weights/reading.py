"""Weights read to a GPU while the start goes on: what it does meanwhile needs their addresses, not their values.

Until a weight has arrived its place holds zeros: steps that run over it for their memory, or to be recorded, compute
finite numbers. Only matrices whose copy takes no memory of the device, and which take none of the host while they wait,
are read so; whatever else a model is built from (norms, biases, what is dequantized or converted) has arrived when it
is handed out, as something may be computed of it.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType

import torch
from torch import Tensor

from model_svc.weights.mapped import is_mapped
from model_svc.weights.upload import Upload

# Python lets a thread that computes keep the lock for 5 ms; threads that read 4 MB in 0.5 ms want it sooner. Beside a
# thread that never leaves Python, 1 GB is read in 0.6 of the time.
_SWITCH_S = 0.0005


class Reading:
    """A thread with a stream of its own that fills tensors in the order they are given to it.

    `wait` before anything looks at values. Left early, the `with` block drops what is not read yet.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._upload = Upload(device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._reads: list[Future[None]] = []
        self._num_read = 0
        self._switch_s = sys.getswitchinterval()

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._stream is not None:
            self._stream.synchronize()  # what it writes to may be freed from now on
        sys.setswitchinterval(self._switch_s)

    def takes(self, out: Tensor, source: Tensor) -> bool:
        """Whether `fill` does it: a matrix that goes from a file to the device as it is stored."""
        plain = out.dtype == source.dtype and out.is_contiguous() and source.is_contiguous()
        return out.dim() > 1 and plain and source.device.type == "cpu" and is_mapped(source)

    def fill(self, out: Tensor, source: Tensor) -> None:
        """Fill `out` with zeros now and with `source` soon."""
        out.zero_()
        zeroed = None
        if self._stream is not None:
            zeroed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            zeroed.record()
        sys.setswitchinterval(_SWITCH_S)
        self._reads.append(self._thread.submit(self._read, out, source, zeroed))

    def wait(self) -> None:
        """Wait until everything has arrived. Raises what reading raised first."""
        for read in self._reads:
            read.result()
        if self._stream is not None:
            self._stream.synchronize()

    def _read(self, out: Tensor, source: Tensor, zeroed: torch.cuda.Event | None) -> None:
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            if self._stream is not None and zeroed is not None:
                self._stream.wait_event(zeroed)  # and for whoever had this memory before
            self._upload.fill(out, source)
        self._num_read += 1
        if self._num_read == len(self._reads):  # many threads may be compiling by now, which switches would slow
            sys.setswitchinterval(self._switch_s)

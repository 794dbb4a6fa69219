"""Mapped files, and a way to copy parts of them that is faster than touching their pages one after another.

A view of a mapped file is a tensor like any other; who wants its bytes elsewhere asks `read_into`, which lets a few
threads read from the file itself (each fault would map 64 KB, and a system call copies 4 MB).
"""

from __future__ import annotations

import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

_PIECE_BYTES = 4 << 20
_THREADS = 8


class _Mapping(NamedTuple):
    """Where in memory a file begins, how long it is, and its descriptor."""

    address: int
    size: int
    descriptor: int


_mappings: dict[int, _Mapping] = {}


def map_file(path: Path) -> mmap.mmap:
    """Map a file copy-on-write: torch wants writable memory, and the file must never change."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        view = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    except BaseException:
        os.close(descriptor)
        raise
    address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
    _mappings[descriptor] = _Mapping(address, len(view), descriptor)
    weakref.finalize(view, _forget, descriptor)
    return view


def _forget(descriptor: int) -> None:
    del _mappings[descriptor]
    os.close(descriptor)


def is_mapped(tensor: Tensor) -> bool:
    """Tell whether a tensor is a view of a mapped file, so that it takes no memory of its own."""
    return _mapping_of(tensor) is not None


def _mapping_of(tensor: Tensor) -> _Mapping | None:
    address, size = tensor.data_ptr(), tensor.nbytes
    for mapping in tuple(_mappings.values()):
        if mapping.address <= address and address + size <= mapping.address + mapping.size:
            return mapping
    return None


class FileReader:
    """Threads that read views of mapped files."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def read_into(self, target: Tensor, source: Tensor) -> bool:
        """Fill `target` with the bytes of the contiguous `source`; False, and nothing done, if that maps no file."""
        mapping = _mapping_of(source)
        if mapping is None:
            return False
        at = source.data_ptr() - mapping.address
        self._read(target.view(torch.uint8).numpy().data, mapping.descriptor, at)
        return True

    def _read(self, target: memoryview, descriptor: int, offset: int) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="weights")
        pieces = range(0, len(target), _PIECE_BYTES)
        reads = [
            self._threads.submit(_read_piece, target[at : at + _PIECE_BYTES], descriptor, offset + at) for at in pieces
        ]
        for read in reads:
            read.result()


def _read_piece(target: memoryview, descriptor: int, offset: int) -> None:
    done = 0
    while done < len(target):
        got = os.preadv(descriptor, [target[done:]], offset + done)
        if not got:
            raise OSError("a file of weights has become shorter while it was read")
        done += got

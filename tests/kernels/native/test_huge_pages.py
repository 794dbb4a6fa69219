"""Memory in huge pages: aligned, zero, apart, and given back with its last piece."""

import gc
import mmap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.native.huge_pages import zeros


def test_pieces_are_zero_aligned_and_apart() -> None:
    pieces = [zeros(size) for size in (1, 100, 64, 5 << 20)]
    for number, piece in enumerate(pieces, 1):
        assert not piece.any()
        assert piece.data_ptr() % 64 == 0
        piece.fill_(number)
    assert [(int(piece.min()), int(piece.max())) for piece in pieces] == [(n, n) for n in range(1, 5)]
    assert [piece.nbytes for piece in pieces] == [1, 100, 64, 5 << 20]


def test_a_large_piece_begins_with_a_page_of_its_own() -> None:
    piece = zeros((32 << 20) + 1)
    assert piece.data_ptr() % (2 << 20) == 0
    piece[-1] = 1


def test_a_full_region_is_followed_by_another() -> None:
    pieces = [zeros(9 << 20) for _ in range(8)]
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    assert all(bool((piece == number).all()) for number, piece in enumerate(pieces))


def test_memory_goes_when_its_last_piece_does(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    class Watched(mmap.mmap):
        pass

    def watched(*args: Any, **kwargs: Any) -> mmap.mmap:
        found = Watched(*args, **kwargs)
        kept.append(weakref.ref(found))
        return found

    monkeypatch.setattr("mmap.mmap", watched)
    piece = zeros(40 << 20)
    part = piece[7:9]
    del piece
    gc.collect()
    assert kept[0]() is not None
    assert torch.equal(part, torch.zeros(2, dtype=torch.uint8))
    del part
    gc.collect()
    assert kept[0]() is None


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages")
def test_the_system_is_asked_for_huge_pages() -> None:
    piece = zeros(40 << 20)
    flags = ""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(word, 16) for word in first.split("-"))
            inside = low <= piece.data_ptr() < high
        elif inside and first == "VmFlags:":
            flags = line
    assert " hg" in flags

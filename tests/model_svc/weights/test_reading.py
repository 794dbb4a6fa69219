"""Weights that arrive while the start goes on: nothing looks at them before, and what goes wrong is told by name."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model_svc.weights.mapped import map_file
from model_svc.weights.reading import Reading
from model_svc.weights.upload import Upload

_CARD = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
_WAIT_S = 60


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_CARD)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def mapped(path: Path, values: Tensor) -> Tensor:
    """Write numbers to a file and return them as a view of it."""
    path.write_bytes(values.view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(map_file(path), dtype=values.dtype).view(values.shape)


def test_places_hold_zeros_until_their_values_have_arrived(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may_read, fill = threading.Event(), Upload.fill

    def held(self: Upload, out: Tensor, source: Tensor) -> None:
        assert may_read.wait(_WAIT_S)
        fill(self, out, source)

    monkeypatch.setattr(Upload, "fill", held)
    switch_s = sys.getswitchinterval()
    sources = [mapped(tmp_path / str(n), torch.randn(shape)) for n, shape in enumerate([(3, 5), (7, 2), (4, 4)])]
    places = [torch.full(source.shape, float("nan"), device=device) for source in sources]
    with Reading(device) as reading:
        for place, source in zip(places, sources, strict=True):
            assert reading.takes(place, source)
            reading.fill(place, source)
        assert sys.getswitchinterval() < switch_s
        assert all(not place.any() for place in places)
        may_read.set()
        reading.wait()
        for place, source in zip(places, sources, strict=True):
            assert torch.equal(place.cpu(), source)
        assert sys.getswitchinterval() == switch_s


def test_what_may_be_computed_of_or_takes_memory_is_not_put_off(device: torch.device, tmp_path: Path) -> None:
    stored = mapped(tmp_path / "weights", torch.randn(4, 6))
    with Reading(device) as reading:
        matrix = torch.empty(4, 6, device=device)
        assert reading.takes(matrix, stored)
        assert reading.takes(matrix[1:3], stored[:2])
        assert not reading.takes(torch.empty(6, device=device), stored[0])
        assert not reading.takes(matrix, stored.clone())  # would wait in the host's memory
        assert not reading.takes(matrix.bfloat16(), stored)
        assert not reading.takes(matrix[:, :3], stored[:, :3])


def test_a_file_that_becomes_shorter_meanwhile_is_the_error_that_waiting_raises(
    tmp_path: Path, device: torch.device
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1 << 16))
    view = torch.frombuffer(map_file(path), dtype=torch.uint8).view(256, 256)
    os.truncate(path, 100)
    with Reading(device) as reading, pytest.raises(OSError, match="shorter"):
        reading.fill(torch.empty(256, 256, dtype=torch.uint8, device=device), view)
        reading.wait()


def test_whoever_leaves_early_waits_for_no_more_than_what_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, read = threading.Event(), threading.Event(), []

    def held(_self: Upload, out: Tensor, _source: Tensor) -> None:
        read.append(out)
        begun.set()
        assert may_end.wait(_WAIT_S)

    monkeypatch.setattr(Upload, "fill", held)
    switch_s = sys.getswitchinterval()
    with pytest.raises(MemoryError), Reading(torch.device("cpu")) as reading:
        for _ in range(5):
            reading.fill(torch.empty(2, 2), torch.ones(2, 2))
        reading._reads[-1].add_done_callback(lambda _: may_end.set())  # called when it is dropped
        assert begun.wait(_WAIT_S)
        raise MemoryError("no room for a KV cache")
    assert len(read) == 1
    assert sys.getswitchinterval() == switch_s

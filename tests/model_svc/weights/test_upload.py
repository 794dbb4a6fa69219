"""Copies in pieces give the whole; where they go must not matter, so the CPU stands for a GPU."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch

from model_svc.weights import mapped, upload
from model_svc.weights.mapped import FileReader, map_file
from model_svc.weights.upload import Upload

_CARD = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_CARD)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.mark.parametrize("shape", [(3, 5), (1,), (0, 4), (64, 33)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_every_piece_arrives_in_its_place_and_kind(
    device: torch.device, shape: tuple[int, ...], kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "_CHUNK_BYTES", 256)
    way = Upload(device)
    for _ in range(3):  # the ring goes round
        source = torch.randn(shape).to(kind)
        out = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=device)
        way.fill(out, source)
        assert torch.equal(out.cpu(), source.to(torch.bfloat16))


def test_views_of_a_mapped_file_are_read_from_the_file(device: torch.device, tmp_path: Path) -> None:
    values = torch.randn(3 << 20)
    (tmp_path / "weights").write_bytes(b"1234" + values.numpy().tobytes())
    view = torch.frombuffer(map_file(tmp_path / "weights"), dtype=torch.float32, offset=4)
    view[7] = 1.0  # copied on write: no reader of the file sees it, and nobody writes to weights
    out = torch.zeros(2 << 20, dtype=torch.float32, device=device)
    Upload(device).fill(out, view[5 : 5 + out.numel()])
    assert torch.equal(out.cpu(), values[5 : 5 + out.numel()])
    buffer = torch.empty(8, dtype=torch.uint8)
    assert not FileReader().read_into(buffer, torch.arange(8, dtype=torch.uint8))
    del view
    gc.collect()
    assert not mapped._mappings


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1 << 16))
    view = torch.frombuffer(map_file(path), dtype=torch.uint8)
    os.truncate(path, 100)
    with pytest.raises(OSError, match="shorter"):
        FileReader().read_into(torch.empty(1 << 16, dtype=torch.uint8), view)


def test_rows_and_columns_cut_out_of_a_tensor_are_copied_as_they_are(device: torch.device) -> None:
    source = torch.arange(60.0).view(6, 10)
    out = torch.zeros(6, 4, device=device)
    Upload(device).fill(out, source[:, 3:7])
    assert torch.equal(out.cpu(), source[:, 3:7])
    Upload(device).fill(out[1:3], source[:2, :4])
    assert torch.equal(out[1:3].cpu(), source[:2, :4])

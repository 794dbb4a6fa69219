"""Native kernels are tested in every build that this machine runs; where nothing is built, one is made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels import dispatch
from kernels.native import build, library


def _runnable() -> list[str]:
    return list(library.available()) or ["built_here"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the builds are."""
    if library.built():
        return build.OUTPUT
    if build.compiler() is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("native")
    build.build(made, only=("generic",))
    return made


@pytest.fixture(params=_runnable())
def isa(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Force one instruction set and the native form of every op."""
    name = "generic" if request.param == "built_here" else request.param
    with library.using(name, folder), dispatch.forced("native"):
        yield name

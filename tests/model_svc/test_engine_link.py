"""The hold on an engine process that does not come to life."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from model_svc.engine_link import EngineLink
from tests.model_svc.house import settings_for

pytestmark = pytest.mark.anyio


async def test_an_engine_that_cannot_be_started_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    open_now = []
    for _ in range(3):  # the event loop keeps what it opens for its first process
        with pytest.raises(FileNotFoundError):
            async with EngineLink.open(settings_for(tmp_path, "")):
                pass
        open_now.append(psutil.Process().num_fds())
    assert open_now[0] >= open_now[2]  # what others left to be collected may be closed meanwhile

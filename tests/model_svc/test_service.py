"""The replica on a real bus: jobs in, tokens out, commands obeyed, nothing left behind. Its engine is a real process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_svc.house import EOS, house, make_model, settings_for
from tests.model_svc.scripted_runner import Script
from wire.bus import Bus

pytestmark = pytest.mark.anyio


async def test_a_job_is_answered_token_by_token_and_its_entry_removed(bus: Bus, bus_url: str, tmp_path: Path) -> None:
    make_model(tmp_path, Script(pieces=[72, 105, EOS]))
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("r1", [1, 2, 3])
        await home.until(lambda: home.finish_reason("r1"))
        assert home.answer("r1") == [72, 105, EOS]
        assert home.finish_reason("r1") == "stop"
        await home.until_open_work_is(0)

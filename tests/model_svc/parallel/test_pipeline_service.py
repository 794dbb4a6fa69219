"""A replica in two stages: it answers, and settings that do not go with stages are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.model_svc.house import engines_of, house, settings_for
from tests.model_svc.parallel.test_service import ENDLESS, STAGED, folder, ranks_of
from tests.processes import has_ended
from wire.bus import Bus
from wire.settings import SettingsError

__all__ = ["folder"]


@pytest.mark.anyio
async def test_a_replica_in_two_stages_answers_and_leaves_none_behind(bus: Bus, bus_url: str, folder: Path) -> None:
    async with house(bus, settings_for(folder, bus_url, **STAGED)) as home:
        (engine,) = engines_of(os.getpid())
        (rank,) = ranks_of(engine)
        for name in ("a", "b", "c"):
            await home.place(name, [1, 2, 3], max_tokens=12, sampling=ENDLESS)
        for name in ("a", "b", "c"):
            await home.until(lambda name=name: home.finish_reason(name))
            assert len(home.answer(name)) == 12
            assert home.answer(name) == home.answer("a")
    assert not engine.is_running()
    assert has_ended(rank)


@pytest.mark.parametrize("other", [{"tensor_parallel": 2}, {"speculate": "ngram"}, {"role": "prefill"}])
def test_settings_that_do_not_go_with_stages_are_refused(other: dict[str, object], bus_url: str, folder: Path) -> None:
    with pytest.raises(SettingsError, match="pipeline_parallel and"):
        settings_for(folder, bus_url, **{**STAGED, **other})

"""What a request cost is noted by the replica, and stands in the ledger when no edge has accounted for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_svc.house import house, make_model, settings_for
from tests.model_svc.scripted_runner import Script
from wire.bus import Bus
from wire.ledger import Entry, Ledger
from wire.messages import Cancel, SamplingParams

pytestmark = pytest.mark.anyio


async def test_finished_and_cancelled_requests_are_noted_with_their_tokens(
    bus: Bus, bus_url: str, tmp_path: Path
) -> None:
    make_model(tmp_path, Script(pieces=[65], num_blocks=4096, max_model_len=65536))
    ledger = Ledger(bus.route)
    async with house(bus, settings_for(tmp_path, bus_url)) as home:
        await home.place("whole", [1, 2, 3], max_tokens=4, sampling=SamplingParams(n=2))
        await home.place("cut", [1, 2, 3, 4], max_tokens=60_000)
        await home.until(lambda: len(home.answer("cut")) >= 3)
        await home.command(Cancel(request_id="cut", attempt=0))
        await home.until_open_work_is(0)
        await ledger.write(Entry(request_id="known", model="m", end="stop"))
        assert await ledger.sweep(0) == 2
    entries = {entry.request_id: entry async for _, entry in ledger.read()}
    whole, cut = entries["whole"], entries["cut"]
    assert (whole.prompt_tokens, whole.completion_tokens, whole.end, whole.by) == (3, 8, "length", "replica")
    assert (cut.prompt_tokens, cut.end) == (4, "cancelled")
    assert cut.completion_tokens >= 3

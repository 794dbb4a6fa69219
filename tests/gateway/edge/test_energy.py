"""Where clients and operators see what a request used of energy, and that nothing is said where it is not metered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.edge.bill import Bill
from tests.gateway.edge.asks import lines_until, opened, streamed, whole
from tests.ring import Ring
from tests.script import say
from wire import telemetry
from wire.ledger import Entry, Ledger
from wire.messages import TokenChunk

pytestmark = pytest.mark.anyio


@pytest.fixture
def metered(ring: Ring) -> Ring:
    """Each token of choice 0 uses half a joule, of the others one."""

    def tell(chunk: TokenChunk) -> list[TokenChunk]:
        so_far = (chunk.index + len(chunk.token_ids)) * (0.5 if chunk.choice == 0 else 1.0)
        return [msgspec.structs.replace(chunk, energy_j=so_far)]

    ring.replica.transform = tell
    ring.replica.play(*say("one ", "two "))
    return ring


async def entries(ring: Ring) -> list[Entry]:
    return [entry async for _, entry in Ledger(ring.bus.route).read()]


async def test_usage_has_the_energy_of_all_choices_streamed_and_whole(metered: Ring) -> None:
    assert (await whole(metered))["usage"]["headrace"]["energy_j"] == 1.5  # with the token that ends it
    assert (await whole(metered, n=2))["usage"]["headrace"]["energy_j"] == 4.5
    stream = await streamed(metered, stream_options={"include_usage": True})
    assert stream.chunks[-1]["usage"]["headrace"]["energy_j"] == 1.5
    body = {"model": "tiny", "input": "hi"}
    answer: dict[str, Any] = (await metered.http.post("/v1/responses", json=body)).json()
    assert answer["usage"]["headrace"]["energy_j"] == 1.5


async def test_a_cancelled_stream_pays_for_what_came_of_it(metered: Ring, spans: InMemorySpanExporter) -> None:
    metered.replica.play(*say("one ", "two "), finish=None)
    async with opened(metered) as response:
        await lines_until(response, "two ")
    await metered.replica.cancelled()
    await metered.until_idle()
    assert 'headrace_energy_joules_total{model="tiny"} 1.0' in (await metered.http.get("/metrics")).text
    (entry,) = await entries(metered)
    assert (entry.end, entry.energy_j) == ("client_gone", 1.0)
    (span,) = (span for span in spans.get_finished_spans() if span.name == "chat tiny")
    assert span.attributes is not None and span.attributes[telemetry.ENERGY_J] == 1.0


async def test_a_stop_string_ends_the_bill_where_it_ends_the_answer(metered: Ring) -> None:
    metered.replica.play(*say("one ", "two ", "three "), finish=None)
    answer = await whole(metered, stop=["two "])
    assert answer["choices"][0]["message"]["content"] == "one "
    assert answer["usage"]["headrace"]["energy_j"] == 1.0


async def test_without_a_meter_nobody_speaks_of_energy(ring: Ring) -> None:
    answer = await whole(ring)
    assert "energy_j" not in answer["usage"]["headrace"]
    await ring.until_idle()
    assert 'headrace_energy_joules_total{model="tiny"} 0.0' in (await ring.http.get("/metrics")).text
    assert [entry.energy_j for entry in await entries(ring)] == [0.0]


async def test_what_an_attempt_used_that_was_lost_is_on_the_bill_too(metered: Ring) -> None:
    """As after the loss of a replica: the next attempt goes on behind the first token, and counts anew."""

    def lose(chunk: TokenChunk) -> list[TokenChunk]:
        attempt, joules = (0, 4.0) if chunk.index == 0 else (1, 0.25 * chunk.index)
        return [msgspec.structs.replace(chunk, attempt=attempt, energy_j=joules)]

    metered.replica.transform = lose
    assert (await whole(metered))["usage"]["headrace"]["energy_j"] == 4.5


def test_bills_of_requests_side_by_side_add_up() -> None:
    assert Bill.joined([Bill(energy_j=1.0), Bill(energy_j=0.5)]).energy_j == 1.5
    assert Bill.joined([Bill(energy_j=1.0), Bill()]).energy_j == 1.0
    assert Bill.joined([Bill(), Bill()]).energy_j is None

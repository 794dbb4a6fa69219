"""A streamed response outside the background: its client comes back, to any edge, and gets what is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openai.types.responses import Response

from tests.gateway.edge.asks import RESPONSES, lines_until, opened
from tests.gateway.edge.sse import Event, read
from tests.gateway.edge.test_background import held
from tests.gateway.edge.test_responses_shape import EVENT
from tests.ring import MakeRing, Ring

pytestmark = pytest.mark.anyio

RESUMABLE: dict[str, Any] = {"stream_options": {"resumable": True}}


def numbered(text: str) -> list[Event]:
    """Return the events of a stream; the id of each is its number."""
    found = read(text).events
    for event in found:
        EVENT.validate_python(event.json(), strict=True)
    assert [int(line) for line in re.findall(r"^id: (\d+)$", text, re.MULTILINE)] == ids(found)
    return found


def ids(found: list[Event]) -> list[int]:
    return [event.json()["sequence_number"] for event in found]


async def test_whoever_comes_back_gets_what_is_missing_from_any_edge(make_ring: MakeRing) -> None:
    async with make_ring() as ring, ring.another_edge() as other:
        pieces, go = held("one ", "two ")
        ring.replica.play(*pieces)
        async with opened(ring, RESPONSES, **RESUMABLE) as response:
            before = numbered("\n".join(await lines_until(response, "one ")) + "\n\n")
        response_id = before[0].json()["response"]["id"]
        assert before[0].json()["response"]["background"] is False
        go.set()
        last = ids(before)[-1]
        ways: tuple[dict[str, Any], ...] = (
            {"params": {"stream": "true", "starting_after": str(last)}},
            {"params": {"stream": "true"}, "headers": {"Last-Event-ID": str(last)}},
        )
        for ask in ways:
            rest = numbered((await other.get(f"{RESPONSES}/{response_id}", **ask)).text)
            assert ids(before) + ids(rest) == list(range(last + 1 + len(rest)))
            deltas = [e.json()["delta"] for e in (*before, *rest) if e.name == "response.output_text.delta"]
            assert "".join(deltas) == "one two "
            assert rest[-1].name == "response.completed"
        whole = (await other.get(f"{RESPONSES}/{response_id}")).json()
        Response.model_validate(whole, strict=True)
        assert (whole["status"], whole["background"]) == ("completed", False)


async def test_one_that_is_not_resumable_has_no_events_to_come_back_to(ring: Ring) -> None:
    answer = await ring.http.post(RESPONSES, json={"model": "tiny", "input": "hi"})
    again = await ring.http.get(f"{RESPONSES}/{answer.json()['id']}", params={"stream": "true"})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "stream")
    body = {"model": "tiny", "input": "hi", "stream": True, "store": False, **RESUMABLE}
    wrong = await ring.http.post(RESPONSES, json=body)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "stream_options.resumable")

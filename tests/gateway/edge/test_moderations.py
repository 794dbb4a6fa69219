"""/v1/moderations runs the server's own rules and answers in OpenAI's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.ring import MakeRing, Ring

pytestmark = pytest.mark.anyio

POLICY = """
[[rule]]
id = "mail"
kind = "detect"
detect = ["email"]
action = "redact"

[[rule]]
id = "word"
kind = "terms"
terms = ["zorgblat"]
action = "block"
category = "harassment"

[[rule]]
id = "blorp"
kind = "terms"
terms = ["blorp"]
action = "flag"
directions = ["tool"]

[[rule]]
id = "insults"
kind = "classifier"
action = "flag"
directions = ["answer"]
"""
PATH = "/v1/moderations"


@pytest.fixture
async def guarded(make_ring: MakeRing, tmp_path: Path) -> AsyncIterator[Ring]:
    (tmp_path / "policy.toml").write_text(POLICY)
    async with make_ring(safety_policy=str(tmp_path / "policy.toml")) as running:
        yield running


async def test_openais_client_reads_what_the_rules_find(guarded: Ring) -> None:
    client = guarded.openai()
    found = await client.moderations.create(input=["fine", "say Zоrgblat", "mail a@b.org"], model="any")
    assert [result.flagged for result in found.results] == [False, True, True]
    assert (found.model, found.id[:5]) == ("any", "modr_")
    assert found.results[1].categories.harassment is True
    assert found.results[1].category_scores.harassment == 1.0
    assert found.results[0].categories.violence is False
    parts = await client.moderations.create(input=[{"type": "text", "text": "a@b.org"}, {"type": "text", "text": "c"}])
    assert [result.flagged for result in parts.results] == [True]
    await client.close()


async def test_places_and_the_filtered_text_are_told(guarded: Ring) -> None:
    body = (await guarded.http.post(PATH, json={"input": "mail a@b.org now"})).json()
    result = body["results"][0]
    assert result["categories"]["mail"] is True
    assert result["headrace"] == {
        "action": "redact",
        "text": "mail [EMAIL_1] now",
        "matches": [{"rule": "mail", "action": "redact", "start": 5, "end": 12}],
    }


async def test_the_direction_chooses_the_rules(guarded: Ring) -> None:
    ask = {"input": "You are a stupid worthless idiot!"}
    assert (await guarded.http.post(PATH, json=ask)).json()["results"][0]["flagged"] is False
    answer = (await guarded.http.post(PATH, json={**ask, "direction": "answer"})).json()["results"][0]
    assert answer["categories"]["insults"] is True
    assert answer["headrace"]["action"] == "none"
    results = [
        (await guarded.http.post(PATH, json={"input": "blorp", "direction": name})).json()["results"][0]
        for name in ("tool", "answer")
    ]
    assert [result["categories"]["blorp"] for result in results] == [True, False]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "image_url", "image_url": {"url": "x"}}]}, "input[0]"),
        ({"input": "x", "direction": "up"}, "direction"),
    ],
)
async def test_a_wrong_body_is_refused_by_field(guarded: Ring, body: dict[str, object], param: str) -> None:
    response = await guarded.http.post(PATH, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_without_a_policy_there_is_nothing_to_ask(ring: Ring) -> None:
    response = await ring.http.post(PATH, json={"input": "x"})
    assert response.status_code == 404
    assert "HEADRACE_SAFETY_POLICY" in response.json()["error"]["message"]

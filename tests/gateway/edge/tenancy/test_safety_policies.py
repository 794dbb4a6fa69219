"""Each tenant's requests go by its own policy: prompts, answers, moderations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.edge.asks import ASK, CHAT
from tests.gateway.edge.tenancy.conftest import KeyFile
from tests.ring import MakeRing
from tests.script import say

pytestmark = pytest.mark.anyio

RULE = '[[rule]]\nid = "a"\nkind = "terms"\nterms = ["{}"]\naction = "redact"\n'


async def test_a_tenant_with_a_file_has_its_rules_and_the_others_have_the_default_ones(
    make_ring: MakeRing, key_file: KeyFile, tmp_path: Path
) -> None:
    key_file.write(alice={}, bob={})
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "default.toml").write_text(RULE.format("one"))
    (policies / "alice.toml").write_text(RULE.format("two"))
    async with make_ring(api_keys=str(key_file.path), safety_policy=str(policies)) as ring:
        ring.replica.play(*say("one ", "two "))
        for key, shown in (("alice", "one [redacted] "), ("bob", "[redacted] two ")):
            headers = {"authorization": f"Bearer {key}"}
            messages = [{"role": "user", "content": "one two "}]
            answer = (await ring.http.post(CHAT, json={**ASK, "messages": messages}, headers=headers)).json()
            assert answer["choices"][0]["message"]["content"] == shown
            assert ring.replica.requests[-1].request.messages[0].content == shown
            found = (await ring.http.post("/v1/moderations", json={"input": "one two "}, headers=headers)).json()
            assert found["results"][0]["headrace"]["text"] == shown

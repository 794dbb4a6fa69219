"""What one tenant has stored, begun or lost the connection to is nowhere to be found for another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.edge.asks import ASK, CHAT, RESPONSES
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio

CONVERSATIONS = "/v1/conversations"


def as_user(name: str, **headers: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {name}", **headers}}


async def test_nothing_of_a_tenant_is_read_continued_cancelled_or_deleted_by_another(guarded: Ring) -> None:
    http = guarded.http
    made = await http.post(CONVERSATIONS, json={"items": [{"role": "user", "content": "x"}]}, **as_user("alice"))
    conversation = made.json()["id"]
    ask = {"model": "tiny", "input": "hi", "conversation": conversation}
    response = (await http.post(RESPONSES, json=ask, **as_user("alice"))).json()
    guarded.replica.play(*say("one "), finish=None)
    running = (await http.post(RESPONSES, json={**ask, "background": True}, **as_user("alice"))).json()
    item = response["output"][0]["id"]
    more = {"model": "tiny", "input": "more"}
    reference = {"model": "tiny", "input": [{"type": "item_reference", "id": item}]}
    tries: list[tuple[str, str, dict[str, Any] | None]] = [
        *((method, f"{RESPONSES}/{one['id']}", None) for one in (response, running) for method in ("GET", "DELETE")),
        ("GET", f"{RESPONSES}/{running['id']}?stream=true", None),
        ("POST", f"{RESPONSES}/{running['id']}/cancel", None),
        ("GET", f"{RESPONSES}/{response['id']}/input_items", None),
        *((method, f"{CONVERSATIONS}/{conversation}", None) for method in ("GET", "DELETE")),
        ("POST", f"{CONVERSATIONS}/{conversation}", {"metadata": {}}),
        ("GET", f"{CONVERSATIONS}/{conversation}/items", None),
        ("POST", f"{CONVERSATIONS}/{conversation}/items", {"items": [{"role": "user", "content": "y"}]}),
        *((method, f"{CONVERSATIONS}/{conversation}/items/{item}", None) for method in ("GET", "DELETE")),
        ("POST", RESPONSES, {**more, "conversation": conversation}),
        ("POST", RESPONSES, {**more, "previous_response_id": response["id"]}),
        ("POST", RESPONSES, reference),
    ]
    for method, path, body in tries:
        answer = await http.request(method, path, json=body, **as_user("bob"))
        assert answer.status_code == 404, (method, path, answer.text)
    assert (await http.get(CONVERSATIONS, **as_user("bob"))).json()["data"] == []
    assert guarded.replica.cancels == []
    cancelled = await http.post(f"{RESPONSES}/{running['id']}/cancel", **as_user("alice"))
    assert cancelled.json()["status"] == "cancelled"


async def test_a_stream_is_resumed_by_its_own_tenant_only(guarded: Ring) -> None:
    body = {**ASK, "stream": True, "stream_options": {"resumable": True}}
    raw = (await guarded.http.post(CHAT, json=body, **as_user("alice"))).text
    last = next(line.removeprefix("id: ") for line in raw.split("\n") if line.startswith("id: "))
    for name, status in (("bob", 404), ("alice", 200)):
        answer = await guarded.http.post(CHAT, json=body, **as_user(name, **{"Last-Event-ID": last}))
        assert answer.status_code == status, answer.text

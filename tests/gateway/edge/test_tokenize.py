"""/tokenize and /detokenize: the ids that a request would have, and back."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import Environment

from tests.gateway.edge.asks import CHAT, still_serves, whole
from tests.ring import MakeRing, Ring
from wire.messages import unpack_ids

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def post(ring: Ring, path: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    response = await ring.http.post(path, json=fields)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_conversation_has_the_ids_that_a_chat_request_has(ring: Ring) -> None:
    ways: tuple[dict[str, Any], ...] = ({}, {"tools": [TOOL]})
    for fields in ways:
        await whole(ring, messages=[USER], **fields)
        prompt = ring.replica.requests[-1].prompt
        assert prompt is not None
        answer = await post(ring, "/tokenize", model="tiny", messages=[USER], **fields)
        assert answer["tokens"] == unpack_ids(prompt.token_ids)
        assert (answer["count"], answer["max_model_len"]) == (prompt.num_tokens, 2048)


async def test_without_a_generation_prompt_the_ids_end_with_the_last_message(ring: Ring) -> None:
    full = (await post(ring, "/tokenize", messages=[USER]))["tokens"]
    bare = (await post(ring, "/tokenize", messages=[USER], add_generation_prompt=False))["tokens"]
    assert full[: len(bare)] == bare and len(bare) < len(full)
    assert (await post(ring, "/detokenize", tokens=full[len(bare) :]))["prompt"] == "<|im_start|>assistant\n"


async def test_a_text_goes_to_ids_and_back(ring: Ring) -> None:
    text = "grüße <|im_end|> 🍕"
    answer = await post(ring, "/tokenize", prompt=text, return_token_strs=True)
    assert len(answer["token_strs"]) == answer["count"]
    assert ring.replica.end_token not in answer["tokens"]
    assert (await post(ring, "/detokenize", tokens=answer["tokens"]))["prompt"] == text


async def test_control_tokens_are_shown_by_name(ring: Ring) -> None:
    end = ring.replica.end_token
    assert (await post(ring, "/detokenize", tokens=[97, end]))["prompt"].endswith("<|im_end|>")
    answer = await post(ring, "/tokenize", messages=[USER], return_token_strs=True)
    assert answer["token_strs"][0] == "<|im_start|>"


async def test_who_adds_no_special_tokens_writes_control_tokens_by_name(ring: Ring) -> None:
    """As lm-eval does: it renders the template that it was told, and sends the ids."""
    told = (await ring.http.get("/tokenizer_info")).json()
    assert told["eos_token"] == "<|im_end|>"
    rendered = Environment().from_string(told["chat_template"]).render(messages=[USER], add_generation_prompt=True)
    ids = (await post(ring, "/tokenize", prompt=rendered, add_special_tokens=False))["tokens"]
    assert ids == (await post(ring, "/tokenize", messages=[USER]))["tokens"]
    end = ring.replica.end_token
    assert (await post(ring, "/tokenize", prompt="<|im_end|>", add_special_tokens=False))["tokens"] == [end]
    assert end not in (await post(ring, "/tokenize", prompt="<|im_end|>"))["tokens"]


async def test_of_another_model_s_tokenizer_nothing_is_told(ring: Ring) -> None:
    assert (await ring.http.get("/tokenizer_info", params={"model": "tiny"})).json()["model_max_length"] == 2048
    response = await ring.http.get("/tokenizer_info", params={"model": "other"})
    assert (response.status_code, response.json()["error"]["param"]) == (404, "model")


async def test_a_text_longer_than_the_context_is_counted_so_that_its_owner_sees_by_how_much(ring: Ring) -> None:
    answer = await post(ring, "/tokenize", prompt="ab" * 1500)
    assert answer["count"] > answer["max_model_len"]
    error = (await post(ring, "/tokenize", status=400, prompt="ab" * 200_000))["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    await still_serves(ring)


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("/tokenize", "prompt", {}),
    ("/tokenize", "prompt", {"prompt": "a", "messages": [USER]}),
    ("/tokenize", "messages", {"messages": []}),
    ("/tokenize", "messages[0].role", {"messages": [{"role": "boss", "content": "x"}]}),
    ("/tokenize", "continue_final_message", {"messages": [USER], "continue_final_message": True}),
    ("/tokenize", "chat_template", {"messages": [USER], "chat_template": "x"}),
    ("/tokenize", "add_special_tokens", {"messages": [USER], "add_special_tokens": True}),
    ("/tokenize", "chat_template_kwargs.tools", {"messages": [USER], "chat_template_kwargs": {"tools": []}}),
    ("/detokenize", "tokens", {}),
    ("/detokenize", "tokens", {"tokens": [-1]}),
    ("/detokenize", "tokens", {"tokens": [10**9]}),
    ("/detokenize", "tokens[0]", {"tokens": ["a"]}),
]


async def test_wrong_values_are_refused_by_name(ring: Ring) -> None:
    for path, param, fields in WRONG:
        assert (await post(ring, path, status=400, **fields))["error"]["param"] == param, fields
    assert (await post(ring, "/tokenize", status=404, model="other", prompt="a"))["error"]["param"] == "model"


async def test_any_partitions_desk_answers(make_ring: MakeRing) -> None:
    async with make_ring(partitions=3) as ring:
        counts = {(await post(ring, "/tokenize", prompt="abc"))["count"] for _ in range(8)}
        assert counts == {3}
        assert (await ring.http.post(CHAT, json={"model": "tiny", "messages": [USER]})).status_code == 200

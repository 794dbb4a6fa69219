"""Each word that the types of OpenAI's and Anthropic's clients allow in a field that we have is taken."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from anthropic.types import message_create_params, output_config_param, thinking_config_param
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from openai.types.shared_params import reasoning

from tests.gateway.edge.asks import ASK, CHAT, RESPONSES
from tests.ring import Ring
from tests.script import say

pytestmark = pytest.mark.anyio

CHAT_TYPES = completion_create_params.CompletionCreateParamsBase
RESPONSE_TYPES = response_create_params.ResponseCreateParamsBase
MESSAGE_TYPES = message_create_params.MessageCreateParamsBase
INPUT = {"model": "tiny", "input": "hi"}
MESSAGE = {**ASK, "max_tokens": 9}


def words(kind: Any, field: str) -> list[str]:
    """Return the words of a field, however deep its type holds them."""

    def within(hint: Any) -> list[str]:
        if typing.get_origin(hint) is typing.Literal:
            return [word for word in typing.get_args(hint) if isinstance(word, str)]
        return [word for inner in typing.get_args(hint) for word in within(inner)]

    return within(typing.get_type_hints(kind)[field])


THINKING = [word for kind in typing.get_args(thinking_config_param.ThinkingConfigParam) for word in words(kind, "type")]
FIELDS: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    (CHAT, ASK, [{"reasoning_effort": word} for word in words(CHAT_TYPES, "reasoning_effort")]),
    (CHAT, ASK, [{"service_tier": word} for word in words(CHAT_TYPES, "service_tier")]),
    (CHAT, ASK, [{"verbosity": word} for word in words(CHAT_TYPES, "verbosity")]),
    (CHAT, ASK, [{"prompt_cache_retention": word} for word in words(CHAT_TYPES, "prompt_cache_retention")]),
    (RESPONSES, INPUT, [{"reasoning": {"effort": word}} for word in words(reasoning.Reasoning, "effort")]),
    (RESPONSES, INPUT, [{"reasoning": {"summary": word}} for word in words(reasoning.Reasoning, "summary")]),
    (RESPONSES, INPUT, [{"reasoning": {"context": word}} for word in words(reasoning.Reasoning, "context")]),
    (RESPONSES, INPUT, [{"service_tier": word} for word in words(RESPONSE_TYPES, "service_tier")]),
    (RESPONSES, INPUT, [{"truncation": word} for word in words(RESPONSE_TYPES, "truncation")]),
    (RESPONSES, INPUT, [{"include": [word]} for word in words(RESPONSE_TYPES, "include")]),
    ("/v1/messages", MESSAGE, [{"service_tier": word} for word in words(MESSAGE_TYPES, "service_tier")]),
    ("/v1/messages", MESSAGE, [{"thinking": {"type": word, "budget_tokens": 5}} for word in THINKING]),
    ("/v1/messages", MESSAGE, [{"thinking": {"type": "adaptive"}, "output_config": {"effort": word}}
                               for word in words(output_config_param.OutputConfigParam, "effort")]),
]  # fmt: skip


async def test_each_word_that_a_client_may_write_is_taken(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    for path, body, tried in FIELDS:
        assert len(tried) > 1, "the client's type has another shape now"
        for fields in tried:
            response = await ring.http.post(path, json={**body, **fields})
            assert response.status_code == 200, (path, fields, response.text)


async def test_the_highest_effort_is_xhigh(ring: Ring) -> None:
    ring.replica.play(*say("hello"))
    await ring.http.post(CHAT, json={**ASK, "reasoning_effort": "max"})
    await ring.http.post(RESPONSES, json={**INPUT, "reasoning": {"effort": "max"}})
    assert [received.request.effort for received in ring.replica.requests] == ["xhigh", "xhigh"]

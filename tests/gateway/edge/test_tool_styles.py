"""Each style of tool calls through the ring, byte by byte, read by OpenAI's own client."""

from __future__ import annotations

import pytest

from tests.gateway.edge.asks import ASK
from tests.gateway.edge.test_tool_grammar import CLOCK, TWO, WEATHER
from tests.gateway.edge.test_tools import letters
from tests.ring import MakeRing

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("style", ("qwen3_coder", "glm45", "kimi_k2"))
async def test_two_calls_in_a_style_are_two_calls_to_the_client(make_ring: MakeRing, style: str) -> None:
    tools = [WEATHER, CLOCK]
    async with make_ring(tool_styles=(style,)) as ring, ring.openai() as client:
        ring.replica.play(*letters(f"I look.\n{TWO[style]}"))
        answer = await client.chat.completions.create(**ASK, tools=tools)
        message = answer.choices[0].message
        assert (message.content, answer.choices[0].finish_reason) == ("I look.", "tool_calls")
        called = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
        assert called == [("weather", '{"city": "Oslo"}'), ("clock", "{}")]
        pieces: dict[int, str] = {}
        async for chunk in await client.chat.completions.create(**ASK, tools=tools, stream=True):
            for choice in chunk.choices:
                for delta in choice.delta.tool_calls or []:
                    assert delta.function is not None
                    pieces[delta.index] = pieces.get(delta.index, "") + (delta.function.arguments or "")
        assert pieces == {0: '{"city": "Oslo"}', 1: "{}"}
        forced = await client.chat.completions.create(**ASK, tools=tools, tool_choice="required")
        assert forced.choices[0].message.tool_calls is not None
        assert ring.replica.requests[-1].request.sampling.grammar is not None

"""The bodies that coding agents send, which are made for OpenAI's and Anthropic's own models: Codex and Claude Code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ring import Ring
from tests.script import say, tag, think

pytestmark = pytest.mark.anyio

CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
PATCH = {
    "type": "grammar",
    "syntax": "lark",
    "definition": 'start: "*** Begin Patch" /\\n/ line+\nline: "+" /(.*)/ /\\n/',
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}

# What Codex sends: a developer's and two user messages behind the instructions, and tools of OpenAI's beside its own.
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are an agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "permissions"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "environment"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "6 times 7?"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "multiply", "arguments": '{"a":6,"b":7}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "42"}]},
        {"type": "custom_tool_call", "status": "completed", "name": "apply_patch", "input": "+x", "call_id": "call_2"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done!"},
    ],
    "tools": [
        {"type": "function", "name": "multiply", "strict": False, "parameters": SCHEMA},
        {"type": "custom", "name": "apply_patch", "description": "Edits files. FREEFORM.", "format": PATCH},
        {
            "type": "namespace",
            "name": "mcp__files__",
            "description": "Tools of a server that the agent runs.",
            "tools": [{"type": "function", "name": "read", "strict": False, "parameters": SCHEMA}],
        },
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation", "output_format": "png"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "low"},
    "client_metadata": {"x": "y"},
}


async def test_codexs_bodies_are_answered_without_the_tools_that_nobody_runs_here(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say(*"42"))
    answer = await ring.http.post("/v1/responses", json=CODEX)
    assert answer.status_code == 200, answer.text
    said = answer.headers["x-headrace-warning"]
    assert said == "ignored fields: client_metadata; tools that are not run here: image_generation, web_search"
    assert "event: response.completed" in answer.text and '"type":"web_search"' not in answer.text
    request = ring.replica.requests[-1].request
    assert [tool["function"]["name"] for tool in request.tools] == ["multiply", "apply_patch", "mcp__files__read"]
    roles = ["system", "user", "user", "assistant", "tool", "assistant", "tool"]
    assert [message.role for message in request.messages] == roles
    counted = await ring.http.post("/v1/responses/input_tokens", json=CODEX)
    assert counted.json()["input_tokens"] > 0
    other = {"type": "mcp", "server_label": "x"}
    for wrong, param in (
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [*CODEX["tools"], other]}, "tools[5].type"),
    ):
        refused = await ring.http.post("/v1/responses", json={**CODEX, **wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_codex_patches_files_and_calls_the_tools_of_its_servers(ring: Ring) -> None:
    text = '*** Begin Patch\n+a "b"\n'
    patch = json.dumps({"name": "apply_patch", "arguments": {"input": text}})
    call = '{"name": "mcp__files__read", "arguments": {"a": 1}}'
    said = "".join(f"<tool_call>\n{one}\n</tool_call>\n" for one in (patch, call))
    ring.replica.play(*say(*said))
    answer = await ring.http.post("/v1/responses", json={**CODEX, "parallel_tool_calls": True, "stream": False})
    first, second = answer.json()["output"]
    assert (first["type"], first["name"], first["input"]) == ("custom_tool_call", "apply_patch", text)
    assert (second["type"], second["namespace"], second["name"]) == ("function_call", "mcp__files__", "read")


# What Claude Code sends: blocks for a cache, betas, thinking, tools with their `$schema`, a system message at the end.
CLAUDE_CODE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "scope": "global"}}
    ],
    "metadata": {"user_id": "user_x"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "max"},
    "tools": [
        {
            "name": "multiply",
            "description": "Multiplies.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                **SCHEMA,
                "propertyNames": {"type": "string"},
            },
            "eager_input_streaming": True,
        }
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                {"type": "text", "text": "6 times 7?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "multiply", "input": {"a": 6}, "caller": {"type": "direct"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42", "is_error": False}]},
        {"role": "system", "content": "be brief"},
    ],
}


async def test_claude_codes_bodies_are_answered_and_counted(ring: Ring) -> None:
    ring.replica.play(*tag("<think>"), *think("hidden "), *tag("</think>"), *say(*CALL))
    headers = {"anthropic-beta": "claude-code-20250219", "anthropic-version": "2023-06-01", "Authorization": "Bearer x"}
    answer = await ring.http.post("/v1/messages?beta=true", json=CLAUDE_CODE, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.text.count('"type":"tool_use"') == 1 and '"stop_reason":"tool_use"' in answer.text
    assert answer.headers["x-headrace-warning"] == "ignored fields: context_management"
    roles = [message.role for message in ring.replica.requests[-1].request.messages]
    assert roles == ["user", "assistant", "tool", "system"]
    counted = {name: value for name, value in CLAUDE_CODE.items() if name not in ("max_tokens", "stream")}
    assert (await ring.http.post("/v1/messages/count_tokens?beta=true", json=counted)).json()["input_tokens"] > 0
    assert (await ring.http.head("/")).status_code == 200

"""Where a client can put text: for every route with a body, each text field of its schema.

`TEXTS` says for each field how a request carries `TERM` there. closed_doors.py has those that take none; a field in
neither fails the test.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.edge.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from gateway.edge.schema.chat import ChatRequest
from gateway.edge.schema.completions import CompletionRequest
from gateway.edge.schema.control import ControlRequest
from gateway.edge.schema.conversations import CreateConversation, CreateItems, UpdateConversation
from gateway.edge.schema.embeddings import EmbeddingRequest
from gateway.edge.schema.messages import MessagesRequest
from gateway.edge.schema.moderations import ModerationRequest
from gateway.edge.schema.rerank import RerankRequest, ScoreRequest
from gateway.edge.schema.responses import ResponsesRequest
from gateway.edge.schema.tokenize import DetokenizeRequest, TokenizeRequest

TERM = "zorgblat"
HI = [{"role": "user", "content": "hi"}]

_RANKS = ("/v1/rerank", "/rerank", "/v2/rerank")
_SCORES = ("/score", "/v1/score")

SCHEMAS: dict[str, tuple[type, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": "tiny", "messages": HI}),
    "/v1/completions": (CompletionRequest, {"model": "tiny", "prompt": "hi"}),
    "/v1/responses": (ResponsesRequest, {"model": "tiny", "input": "hi"}),
    "/v1/messages": (MessagesRequest, {"model": "tiny", "messages": HI, "max_tokens": 5}),
    "/v1/embeddings": (EmbeddingRequest, {"model": "bert", "input": "hi"}),
    **dict.fromkeys(_RANKS, (RerankRequest, {"model": "bert", "query": "hi", "documents": ["hi"]})),
    **dict.fromkeys(_SCORES, (ScoreRequest, {"model": "bert", "text_1": "hi", "text_2": "hi"})),
    "/v1/conversations": (CreateConversation, {}),
    "/v1/conversations/{id}": (UpdateConversation, {"metadata": {}}),
    "/v1/conversations/{id}/items": (CreateItems, {"items": HI}),
    "/v1/messages/count_tokens": (MessagesRequest, {}),
    "/v1/responses/input_tokens": (ResponsesRequest, {}),
    "/v1/moderations": (ModerationRequest, {}),
    "/tokenize": (TokenizeRequest, {}),
    "/detokenize": (DetokenizeRequest, {}),
    "/v1/requests/{id}/control": (ControlRequest, {}),
    "/v1/load_lora_adapter": (LoadAdapterRequest, {}),
    "/v1/unload_lora_adapter": (UnloadAdapterRequest, {}),
}

Body = dict[str, Any]
_PLAIN: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}
_CALL_OUTPUT = {"type": "function_call", "call_id": "c", "name": "look"}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


# a term in each place of a definition, one place a tool
TOOLS: list[dict[str, Any]] = [
    {"name": TERM, "parameters": _PLAIN},
    {"name": "a", "description": f"Looks up {TERM}.", "parameters": _PLAIN},
    {"name": "a", "parameters": {"type": "object", "properties": {TERM: {"type": "string"}}}},
    {"name": "a", "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": TERM}}}},
    {"name": "a", "parameters": {"type": "object", "properties": {"q": {"enum": ["x", TERM]}}}},
    {"name": "a", "parameters": {"type": "object", "properties": {"q": {"type": "string", "default": TERM}}}},
    {"name": "a", "strict": True, "parameters": {**_PLAIN, "title": TERM}},
    {"name": "a", "parameters": _PLAIN, "note": TERM},
]
CUSTOM: list[dict[str, Any]] = [
    {"type": "custom", "name": TERM},
    {"type": "custom", "name": "a", "description": f"Looks up {TERM}."},
    {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "regex", "definition": TERM}},
]
_SPACES: list[dict[str, Any]] = [
    {"type": "namespace", "name": TERM, "tools": [{"type": "custom", "name": "a"}]},
    {"type": "namespace", "name": "a", "description": TERM, "tools": [{"type": "custom", "name": "a"}]},
    *({"type": "namespace", "name": "a", "tools": [one]} for one in CUSTOM),
]
_SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {TERM: {"type": "string"}}},
    {"type": "string", "enum": [TERM]},
    {"type": "string", "description": TERM},
]


def _assistant(call: dict[str, Any], result: str = "x") -> list[dict[str, Any]]:
    known = {"id": "c", "type": "function", "function": {"name": "look"}, **call}
    return [*HI, {"role": "assistant", "tool_calls": [known]}, {"role": "tool", "tool_call_id": "c", "content": result}]


def _used(changes: dict[str, Any]) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}, **changes}
    return [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [_result(use["id"], "x")]}]


def _result(use_id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use_id, "content": content}


def _documents(*documents: dict[str, Any]) -> list[Body]:
    plain = {"type": "text", "media_type": "text/plain", "data": "x"}
    given = [{"type": "document", "source": plain, **one} for one in documents]
    return [{"messages": [{"role": "user", "content": [one]}]} for one in given]


_DOCUMENTS = _documents(
    {"title": TERM},
    {"context": TERM},
    {"source": {"type": "text", "media_type": "text/plain", "data": TERM}},
    {"source": {"type": "content", "content": [{"type": "text", "text": TERM}]}},
    {"type": "search_result", "source": TERM, "title": "x", "content": [{"type": "text", "text": "x"}]},
    {"type": "search_result", "source": "x", "title": "x", "content": [{"type": "text", "text": TERM}]},
)
_STRUCTURED: dict[str, list[Body]] = {
    "structured_outputs.choice[]": [{"structured_outputs": {"choice": ["x", TERM]}}],
    "structured_outputs.grammar": [{"structured_outputs": {"grammar": f'start: "{TERM}"'}}],
    "structured_outputs.json": [{"structured_outputs": {"json": json.dumps({"enum": [TERM]})}}],
    "structured_outputs.json{}": [{"structured_outputs": {"json": {"enum": [TERM]}}}],
    "structured_outputs.regex": [{"structured_outputs": {"regex": TERM}}],
    "guided_choice[]": [{"guided_choice": ["x", TERM]}],
    "guided_grammar": [{"guided_grammar": f'start: "{TERM}"'}],
    "guided_json": [{"guided_json": json.dumps({"enum": [TERM]})}],
    "guided_json{}": [{"guided_json": {"enum": [TERM]}}],
    "guided_regex": [{"guided_regex": TERM}],
}
_FORMATTED: dict[str, list[Body]] = {
    "response_format{}": [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
        for schema in _SCHEMAS
    ]
}


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "name": "n", "schema": schema}


def items(name: str) -> dict[str, list[Body]]:
    """Return the ways to put a term into items, which come in a field of this name."""

    def of(item: dict[str, Any]) -> Body:
        return {name: [item, {"role": "user", "content": "hi"}]}

    def part(kind: str = "input_text") -> list[dict[str, Any]]:
        return [{"type": kind, "refusal" if kind == "refusal" else "text": TERM}]

    thinking = {"type": "reasoning", "id": "r"}
    said = {"role": "assistant", "content": "x"}
    output = {"type": "function_call_output", "call_id": "c"}
    return {
        f"{name}[].content": [of({"role": "user", "content": TERM})],
        f"{name}[].content[].text": [
            of({"role": "user", "content": part()}),
            {name: [{**thinking, "content": part("reasoning_text")}, said, *HI]},
        ],
        f"{name}[].content[].refusal": [of({"role": "assistant", "content": part("refusal")})],
        f"{name}[].summary[].text": [{name: [{**thinking, "summary": part()}, said, *HI]}],
        f"{name}[].name": [
            of({**_CALL_OUTPUT, "name": TERM}),
            of({**_CALL_OUTPUT, "type": "custom_tool_call", "input": "x", "name": TERM}),
        ],
        f"{name}[].call_id": [of({**_CALL_OUTPUT, "call_id": TERM})],
        f"{name}[].arguments": [of({**_CALL_OUTPUT, "arguments": json.dumps({"q": TERM})})],
        f"{name}[].namespace": [of({**_CALL_OUTPUT, "namespace": TERM})],
        f"{name}[].input": [
            of({**_CALL_OUTPUT, "type": "custom_tool_call", "input": TERM}),
            of({**_CALL_OUTPUT, "type": "custom_tool_call", "input": f'a\\n"{TERM}"'}),
        ],
        f"{name}[].output": [of({**output, "output": TERM})],
        f"{name}[].output[].text": [of({**output, "output": part()})],
        f"{name}[].output[].refusal": [of({**output, "output": part("refusal")})],
    }


_LABELS: dict[str, list[Body]] = {
    "metadata{}": [{"metadata": {"title": TERM}}, {"metadata": {TERM: "x"}}],
}

_RANKED: dict[str, list[Body]] = {
    "query": [{"query": TERM}],
    "documents[]": [{"documents": ["hi", TERM]}],
    "documents[].text": [{"documents": [{"text": TERM}]}],
}
_SCORED: dict[str, list[Body]] = {
    "text_1": [{"text_1": TERM}],
    "text_1[]": [{"text_1": ["hi", TERM], "text_2": ["hi", "hi"]}],
    "text_2": [{"text_2": TERM}],
    "text_2[]": [{"text_2": ["hi", TERM]}],
}

TEXTS: dict[str, dict[str, list[Body]]] = {
    "/v1/chat/completions": {
        **_STRUCTURED,
        **_FORMATTED,
        "messages[].content": [
            *({"messages": [{"role": role, "content": TERM}, *HI]} for role in ("system", "developer", "user")),
            {"messages": _assistant({}, TERM)},
        ],
        "messages[].content[].text": [{"messages": [{"role": "user", "content": [{"type": "text", "text": TERM}]}]}],
        "prediction{}": [{"prediction": {"type": "content", "content": TERM}}],
        "messages[].content[].refusal": [
            {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": TERM}]}, *HI]}
        ],
        "messages[].name": [{"messages": [{"role": "user", "content": "x", "name": TERM}]}],
        "messages[].reasoning": [{"messages": [{"role": "assistant", "content": "x", "reasoning": TERM}, *HI]}],
        "messages[].reasoning_content": [
            {"messages": [{"role": "assistant", "content": "x", "reasoning_content": TERM}, *HI]}
        ],
        "messages[].refusal": [{"messages": [{"role": "assistant", "refusal": TERM}, *HI]}],
        "messages[].tool_call_id": [{"messages": [*HI, {"role": "tool", "tool_call_id": TERM, "content": "x"}]}],
        "messages[].tool_calls[].function.arguments": [
            {"messages": _assistant({"function": {"name": "look", "arguments": json.dumps({"q": TERM})}})}
        ],
        "messages[].tool_calls[].function.name": [{"messages": _assistant({"function": {"name": TERM}})}],
        "messages[].tool_calls[].custom.name": [
            {"messages": _assistant({"type": "custom", "custom": {"name": TERM, "input": "x"}})}
        ],
        "messages[].tool_calls[].custom.input": [
            {"messages": _assistant({"type": "custom", "custom": {"name": "look", "input": TERM}})}
        ],
        "messages[].tool_calls[].id": [{"messages": _assistant({"id": TERM})}],
        "tools[]{}": [{"tools": [{"type": "function", "function": one}]} for one in TOOLS]
        + [{"tools": [one]} for one in CUSTOM],
        "chat_template_kwargs{}": [
            {"chat_template_kwargs": {"style": TERM}},
            {"chat_template_kwargs": {"style": {"of": [TERM]}}},
            {"chat_template_kwargs": {TERM: 1}},
        ],
    },
    "/v1/completions": {
        **_STRUCTURED,
        **_FORMATTED,
        "prompt": [{"prompt": TERM}],
        "prompt[]": [{"prompt": ["hi", TERM]}],
    },
    "/v1/responses": {
        **_STRUCTURED,
        **_LABELS,
        **items("input"),
        "input": [{"input": TERM}],
        "instructions": [{"instructions": TERM}],
        "text.format{}": [{"text": {"format": _flat(schema)}} for schema in _SCHEMAS],
        "tools[]{}": [{"tools": [{"type": "function", **one}]} for one in TOOLS]
        + [{"tools": [one]} for one in (*CUSTOM, *_SPACES)]
        + [{"tools": [{"type": "function", **TOOLS[1]}], "tool_choice": "none"}],
        "input[].tools[]{}": [
            {"input": [{"type": "additional_tools", "role": "developer", "tools": [one]}, *HI]}
            for one in (*({"type": "function", **one} for one in TOOLS), *CUSTOM, *_SPACES)
            if one.get("type") != "namespace" or one.get("description") != TERM  # of these nobody reads it
        ],
        "tool_choice": [
            {
                "tools": [{"type": "function", "name": "look"}],
                "tool_choice": {"type": "function", "name": "look", "note": TERM},
            }
        ],
        "chat_template_kwargs{}": [{"chat_template_kwargs": {"style": TERM}}],
        "prompt_cache_key": [{"prompt_cache_key": TERM}],
        "safety_identifier": [{"safety_identifier": TERM}],
        "user": [{"user": TERM}],
    },
    "/v1/messages": {
        "messages[].content": [
            {"messages": [*HI, {"role": role, "content": TERM}, *HI]} for role in ("user", "assistant")
        ],
        "messages[].content[].text": [
            {"messages": [*HI, {"role": role, "content": [{"type": "text", "text": TERM}]}, *HI]}
            for role in ("user", "assistant")
        ],
        "messages[].content[].thinking": [
            {"messages": [*HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": TERM}]}, *HI]}
        ],
        "messages[].content[].id": [{"messages": _used({"id": TERM})}],
        "messages[].content[].name": [{"messages": _used({"name": TERM})}],
        "messages[].content[].input{}": [
            {"messages": _used({"input": {"q": TERM}})},
            {"messages": _used({"input": {TERM: 1}})},
        ],
        **{f"messages[].content[].{field}": _DOCUMENTS for field in ("source", "source{}", "title", "context")},
        "messages[].content[].tool_use_id": [{"messages": [{"role": "user", "content": [_result(TERM, "x")]}]}],
        "messages[].content[].content": [{"messages": [{"role": "user", "content": [_result("c", TERM)]}]}],
        "messages[].content[].content[].text": [
            {"messages": [{"role": "user", "content": [_result("c", [{"type": "text", "text": TERM}])]}]}
        ],
        "system": [{"system": TERM}],
        "system[].text": [{"system": [{"type": "text", "text": TERM}]}],
        "tools[]{}": [
            {"tools": [{"name": TERM, "input_schema": {"type": "object"}}]},
            {"tools": [{"name": "a", "description": TERM, "input_schema": {"type": "object"}}]},
            {"tools": [{"name": "a", "input_schema": TOOLS[3]["parameters"]}]},
        ],
        "output_config.format{}": [{"output_config": {"format": _flat(_SCHEMAS[1])}}],
        "output_format{}": [{"output_format": _flat(_SCHEMAS[1])}],
    },
    "/v1/embeddings": {
        "input": [{"input": TERM}],
        "input[]": [{"input": ["hi", TERM]}],
    },
    **dict.fromkeys(_RANKS, _RANKED),
    **dict.fromkeys(_SCORES, _SCORED),
    "/v1/conversations": {**_LABELS, **items("items")},
    "/v1/conversations/{id}": _LABELS,
    "/v1/conversations/{id}/items": items("items"),
}

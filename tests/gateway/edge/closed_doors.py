"""Fields and routes that carry no text to a model: they refuse it, or nobody reads it, for the reason given here."""

from __future__ import annotations

from tests.gateway.edge.doors import FUNCTION, TERM, Body

UNREAD_ROUTES = {
    "/v1/messages/count_tokens": "is counted only",
    "/v1/responses/input_tokens": "is counted only",
    "/v1/messages/batches{rest:path}": "refuses everything",
    "/v1/moderations": "is what asks the rules",
    "/tokenize": "is counted only",
    "/detokenize": "is spelled only",
    "/v1/load_lora_adapter": "is an operator's, and takes a name and a path",
    "/v1/unload_lora_adapter": "is an operator's, and takes a name",
    "/v1/requests/{id}/control": "takes a word of ours",
    "/v1/responses/compact": "refuses everything",
    "/v1/responses/{id}/cancel": "has no body",
}

# fields that take nothing of the kind: the request is refused, or what is not one of a few words
CLOSED: dict[str, Body] = {
    "chat_template": {"chat_template": TERM},
    "context_management[]": {"context_management": [TERM]},
    "conversation": {"conversation": TERM},
    "conversation.id": {"conversation": {"id": TERM}},
    "container": {"container": TERM},
    "functions[]": {"functions": [{"name": TERM}]},
    "include[]": {"include": [TERM]},
    "logit_bias{}": {"logit_bias": {TERM: 1}},
    "mcp_servers[]": {"mcp_servers": [{"name": TERM}]},
    "moderation": {"moderation": TERM},
    "modalities[]": {"modalities": [TERM]},
    "input[].arguments{}": {
        "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"q": TERM}}]
    },
    "input[].output{}": {"input": [{"type": "function_call_output", "call_id": "c", "output": {"q": TERM}}]},
    "items[].arguments{}": {
        "items": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"q": TERM}}]
    },
    "items[].output{}": {"items": [{"type": "function_call_output", "call_id": "c", "output": {"q": TERM}}]},
    "items[].tools[]{}": {"items": [{"type": "additional_tools", "tools": [{"type": "custom", "name": TERM}]}]},
    "messages[].audio{}": {"messages": [{"role": "assistant", "audio": {"id": TERM}}]},
    "messages[].function_call.arguments": {"messages": [{"role": "assistant", "function_call": {"name": TERM}}]},
    "messages[].function_call.name": {"messages": [{"role": "assistant", "function_call": {"name": TERM}}]},
    "model": {"model": TERM},
    "output_config.effort": {"thinking": {"type": "adaptive"}, "output_config": {"effort": TERM}},
    "previous_response_id": {"previous_response_id": TERM},
    "prompt": {"prompt": {"id": TERM}},
    "reasoning.effort": {"reasoning": {"effort": TERM}},
    "reasoning_effort": {"reasoning_effort": TERM},
    "service_tier": {"service_tier": TERM},
    "suffix": {"suffix": TERM},
    "thinking.type": {"thinking": {"type": TERM}},
    "tool_choice": {"tools": [FUNCTION], "tool_choice": TERM},
    "tool_choice.name": {
        "tools": [{"name": "a", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": TERM},
    },
    "tool_choice.type": {"tool_choice": {"type": TERM}},
}
# documents and whatever else is no text: refused by their place
_PICTURE = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": TERM}}
CLOSED_BLOCKS: dict[str, Body] = {
    "/v1/messages": {"messages": [{"role": "user", "content": [_PICTURE]}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": TERM}]}]},
}

UNREAD: dict[str, str] = {
    "bad_words[]": "is what must not be said",
    "cache_salt": "names a cache",
    "display": "is one of two words",
    "metadata.user_id": "is not kept",
    "metadata{}": "of a chat completion is not kept",
    "prompt_cache_key": "of a chat completion is hashed",
    "prompt_cache_retention": "is not kept",
    "safety_identifier": "of a chat completion is not kept",
    "stop": "is what ends an answer, looked for at the edge",
    "stop[]": "is what ends an answer, looked for at the edge",
    "stop_sequences[]": "is what ends an answer, looked for at the edge",
    "thinking.display": "is one of two words",
    "user": "of a chat completion is not kept",
}
# one of few words, or refused; the id of an item is not taken over; a picture is no text, and else refused or dropped
UNREAD_ENDS = (".type", ".role", "[].id", ".image_url", ".image_url.url", ".detail", ".file_id")
# a part has one text, others are dropped; citations are refused
UNREAD_PARTS = ("[].content[].content[].", ".citations{}", "system[].", "[].summary[].refusal")

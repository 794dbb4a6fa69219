"""How a model writes tool calls, as its chat template tells. Edge and tokenizer desk must agree on it."""

from __future__ import annotations

SCAFFOLD = "hermes"  # what a model whose template knows no tools is told to write


def knows_tools(template: str | None) -> bool:
    """Tell whether a template shows tools to the model."""
    return "tools" in (template or "")


def tool_style(template: str | None) -> str:
    """Return the style: hermes, llama3, mistral or json."""
    if template is None or not knows_tools(template):
        return SCAFFOLD
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or "<|start_header_id|>" in template:
        return "llama3"
    return "json"

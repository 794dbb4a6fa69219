"""How a model writes tool calls, as its chat template tells. Edge and tokenizer desk must agree on it."""

from __future__ import annotations

from wire.harmony import speaks_harmony

SCAFFOLD = "hermes"  # what a model whose template knows no tools is told to write
HARMONY = "harmony"  # not only calls: all that a model says is framed so, and no setting changes it


def knows_tools(template: str | None) -> bool:
    """Tell whether a template shows tools to the model."""
    return "tools" in (template or "")


# A style and what its templates hold, the telling ones first: some hold the tags of others as well.
_TELLING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("mistral", ("[TOOL_CALLS]",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("glm45", ("<arg_key>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("olmo3", ("<functions>", "<function_calls>")),
    ("seed_oss", ("<seed:tool_call>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("hermes", ("<tool_call>",)),
    ("llama3", ("<|python_tag|>",)),
    ("llama3", ("<|start_header_id|>",)),
)


def tool_style(template: str | None) -> str:
    """Return the style, by the name that its parser has."""
    if speaks_harmony(template):
        return HARMONY
    if template is None or not knows_tools(template):
        return SCAFFOLD
    return next((style for style, parts in _TELLING if all(part in template for part in parts)), "json")

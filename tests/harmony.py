"""A tiny model that speaks harmony, and what such models say, in tokens with the phases that the engine gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gateway.postprocess.tools.harmony import HarmonyParser
from model_svc.engine.phase_runs import Runs
from model_svc.engine.reasoning import ReasoningTracker
from tests.script import Piece
from tests.tiny_model import PIECES, write_tiny_model
from wire.harmony import TAGS
from wire.messages import ANSWER, ReasoningPlan

SPECIAL = ("<|constrain|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|start|>", "<|return|>")
WORDS = (
    "analysis",
    "commentary",
    "final",
    "assistant",
    " to=functions.",
    "weather",
    "json",
    '{"city": ',
    '"Oslo"',
    "}",
)

# After gpt-oss's own: of each message it shows as much, and it refuses the same.
TEMPLATE = """
{%- if reasoning_effort is not defined %}{% set reasoning_effort = "medium" %}{% endif -%}
{%- set first = messages[0] if messages[0].role in ["developer", "system"] -%}
<|start|>system<|message|>{{ model_identity if model_identity is defined else "You are a model." }}
Current date: {{ strftime_now("%Y-%m-%d") }}

Reasoning: {{ reasoning_effort }}
{%- for tool in builtin_tools or [] %} {{ tool }}{% endfor -%}
<|end|>
{%- if first or tools -%}
<|start|>developer<|message|>{{ first.content if first }}
{%- for tool in tools or [] %}
// {{ tool.function.description + "" }}
type {{ tool.function.name }} = (_: {{ (tool.function.parameters or {}) | tojson }}) => any;
{%- endfor -%}
<|end|>
{%- endif -%}
{%- set past = namespace(call=none) -%}
{%- for message in (messages[1:] if first else messages) -%}
{%- if message.role == "assistant" and message.tool_calls -%}
{%- if message.content and message.thinking %}{{ raise_exception("content and thinking") }}{% endif -%}
{%- if message.thinking or message.content -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking or message.content }}<|end|>
{%- endif -%}
{%- set past.call = message.tool_calls[0].function -%}
<|start|>assistant to=functions.{{ past.call.name }}<|channel|>commentary json<|message|>
{{- past.call.arguments | tojson }}<|call|>
{%- elif message.role == "assistant" -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- set past.call = none -%}
{%- elif message.role == "tool" -%}
{%- if past.call is none %}{{ raise_exception("a result of no call") }}{% endif -%}
<|start|>functions.{{ past.call.name }} to=assistant<|channel|>commentary<|message|>
{{- message.content | tojson }}<|end|>
{%- elif message.role == "user" -%}
<|start|>user<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
"""

_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")


def write_harmony_model(path: Path, *, max_model_len: int = 2048) -> Path:
    """Write the model's directory; it has no weights."""
    pieces = (*PIECES, *map(str.encode, WORDS))
    return write_tiny_model(path, pieces=pieces, special=SPECIAL, template=TEMPLATE, max_model_len=max_model_len)


def tokens(text: str, *words: str) -> list[bytes]:
    """Return a text as tokens: control tokens and these words whole, all else byte by byte."""
    whole = re.compile("(" + "|".join(map(re.escape, (*TAGS, *words))) + ")")
    found: list[bytes] = []
    for at, part in enumerate(whole.split(text)):
        found += [part.encode()] if at % 2 else [bytes([byte]) for byte in part.encode()]
    return found


def in_characters(text: str) -> str:
    """Return a text as the edge's parser gets it: control tokens are characters of no text."""
    parser = HarmonyParser()
    return _TAG.sub(lambda found: parser.written(found[0]), text)


def marked(raw: Iterable[bytes], plan: ReasoningPlan | None = None) -> list[tuple[bytes, Runs]]:
    """Return tokens with the phases that a tracker tells; without a plan as the model likes."""
    listed = list(raw)
    tracker = ReasoningTracker(plan or ReasoningPlan(channels=True, open_tag=b"", close_tag=b""), listed.__getitem__)
    for token in range(len(listed)):
        tracker.feed(token)
    tracker.end()
    return list(zip(listed, tracker.take(), strict=True))


def pieces(text: str, *, plan: ReasoningPlan | None = None) -> list[Piece]:
    """Return what a replica says, as a script."""
    return [Piece(raw, runs[0][1]) for raw, runs in marked(tokens(text, *WORDS), plan)]


def unframed(text: str) -> list[Piece]:
    """Return the tokens all as answer, as a replica without a plan tells them."""
    return [Piece(raw, ANSWER) for raw in tokens(text, *WORDS)]

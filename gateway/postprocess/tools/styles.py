"""The styles of tool calls by name; `wire.tool_style` tells which one a model's template asks for."""

from __future__ import annotations

from collections.abc import Callable

from gateway.postprocess.tools.hermes import HermesParser
from gateway.postprocess.tools.llama3 import Llama3Parser
from gateway.postprocess.tools.mistral import MistralParser
from gateway.postprocess.tools.parser import ToolParser
from gateway.postprocess.tools.plain_json import PlainJsonParser

STYLES: dict[str, Callable[[frozenset[str]], ToolParser]] = {
    "hermes": HermesParser,
    "llama3": Llama3Parser,
    "mistral": MistralParser,
    "json": PlainJsonParser,
}

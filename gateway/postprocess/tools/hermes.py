"""Hermes, Qwen and the scaffold of models that know no tools: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

SmolLM2 was taught to put a list between the tags; both are read.
"""

from __future__ import annotations

from gateway.postprocess.tools.parser import JsonToolParser


class HermesParser(JsonToolParser):
    """Calls between <tool_call> tags."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)

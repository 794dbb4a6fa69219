"""Kimi K2: calls in a section of their own, each headed by its id, `functions.name:number`."""

from __future__ import annotations

import re

from gateway.postprocess.tools.headed import HeadedToolParser

SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"


class KimiK2Parser(HeadedToolParser):
    """The number in an id is the model's own count; clients get ids of ours, the desk puts Kimi's back."""

    opens = (SECTION_BEGIN, CALL_BEGIN)
    closes = (CALL_END, SECTION_END)
    inner = (ARGUMENTS,)
    head = re.compile(rf"(?:functions\.)?([\w.-]+?)(?::\d+)?\s*{re.escape(ARGUMENTS)}\s*")

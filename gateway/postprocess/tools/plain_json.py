"""Everybody else: the JSON of a call, or of a list of them, as the whole answer, in a code fence, or between tags."""

from __future__ import annotations

from gateway.postprocess.tools.parser import JsonToolParser


class PlainJsonParser(JsonToolParser):
    """Calls as bare JSON at the beginning of the answer, or behind a tag that some model uses."""

    opens = ("<tool_call>", "<|tool_call|>", "<function_call>", "functools")
    closes = ("</tool_call>", "<|/tool_call|>", "</function_call>")
    leads = ("```json", "```", "[")

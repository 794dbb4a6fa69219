"""Llama 3: {"name": ..., "parameters": {...}} as the whole answer, or behind <|python_tag|>; several parted by `;`."""

from __future__ import annotations

from gateway.postprocess.tools.parser import JsonToolParser


class Llama3Parser(JsonToolParser):
    """Calls as bare JSON at the beginning of the answer, or behind the python tag."""

    opens = ("<|python_tag|>",)
    leads = ("[",)

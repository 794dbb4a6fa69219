"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter></function></tool_call>, a line for each.

It leaves out <tool_call> now and then, so <function= begins a call as well.
"""

from __future__ import annotations

import re

from gateway.postprocess.tools.element_reader import Form
from gateway.postprocess.tools.elements import ElementToolParser

_SO_FAR = re.compile(r"[\w.-]{0,128}")


class Qwen3CoderParser(ElementToolParser):
    """Names stand in the tags."""

    opens = ("<tool_call>", "<function=")
    closes = ("</tool_call>",)
    head = re.compile(r"([\w.-]{1,128})>")
    form = Form(name="<parameter=", name_end=">", value="", value_end="</parameter>", end="</function>", lines=True)

    def _may_be_head(self) -> bool:
        return _SO_FAR.fullmatch(self._buffer) is not None

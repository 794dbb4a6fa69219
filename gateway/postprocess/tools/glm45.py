"""GLM 4.5 and later: <tool_call>name, then <arg_key> and <arg_value> in turn, </tool_call>."""

from __future__ import annotations

import re

from gateway.postprocess.tools.element_reader import Form
from gateway.postprocess.tools.elements import ElementToolParser
from gateway.postprocess.tools.overlap import overlap

_NAME = re.compile(r"[\w.-]{1,128}\s{0,16}")


class Glm45Parser(ElementToolParser):
    """The closing tag of a call ends its arguments."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)
    inner = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    head = re.compile(r"([\w.-]{1,128})\s{0,16}(?=<arg_key>|</tool_call>)")
    form = Form(
        name="<arg_key>", name_end="</arg_key>", value="<arg_value>", value_end="</arg_value>", end="", lines=False
    )

    def _may_be_head(self) -> bool:
        rest = self._buffer[: len(self._buffer) - overlap(self._buffer, ("<arg_key>", "</tool_call>"))]
        return _NAME.fullmatch(rest) is not None

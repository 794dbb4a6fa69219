"""MiniMax M2: between its own tags <invoke name="name"> for a call, in it <parameter name="key">value</parameter>."""

from __future__ import annotations

import re

from gateway.postprocess.tools.element_reader import Form
from gateway.postprocess.tools.elements import ElementToolParser

_SO_FAR = re.compile(r'[\w.-]{0,128}"?')


class MiniMaxM2Parser(ElementToolParser):
    """Names stand in the tags; several calls share the outer ones."""

    opens = ("<minimax:tool_call>", '<invoke name="')
    closes = ("</minimax:tool_call>",)
    head = re.compile(r'([\w.-]{1,128})">')
    form = Form(
        name='<parameter name="', name_end='">', value="", value_end="</parameter>", end="</invoke>", lines=False
    )

    def _may_be_head(self) -> bool:
        return _SO_FAR.fullmatch(self._buffer) is not None

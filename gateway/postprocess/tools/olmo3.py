"""OLMo 3: between <function_calls> tags a line for each call, as in Python: `name(key="value", other=1)`."""

from __future__ import annotations

import re

from gateway.postprocess.tools.parser import JsonToolParser
from gateway.postprocess.tools.python_reader import PythonReader

_HEAD = re.compile(r"([\w.-]{1,128})\(")
_SO_FAR = re.compile(r"[\w.-]{0,128}")


class Olmo3Parser(JsonToolParser):
    """All calls stand between one pair of tags."""

    opens = ("<function_calls>",)
    closes = ("</function_calls>",)

    def _other(self, final: bool) -> bool:
        """Take the function's name."""
        found = _HEAD.match(self._buffer)
        if found is None:
            if not final and _SO_FAR.fullmatch(self._buffer):
                return False
            return super()._other(final)
        self._begin(found.end(), bare=False, reader=PythonReader(found[1]))
        return True

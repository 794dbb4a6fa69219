"""Mistral: [TOOL_CALLS] and a list of {"name": ..., "arguments": {...}}; newer ones write name[ARGS]{...} instead.

Mistral's templates take back only call ids of nine letters and digits.
"""

from __future__ import annotations

import re
import string
from hashlib import blake2b

from gateway.postprocess.tools.call_reader import CallReader
from gateway.postprocess.tools.parser import JsonToolParser

_ALPHABET = string.ascii_letters + string.digits
_HEAD = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*")
_HEAD_SO_FAR = re.compile(r"[\w.-]+(?:\[[A-Z_]*\]?\w*)*\s*")


class MistralParser(JsonToolParser):
    """Calls behind [TOOL_CALLS]."""

    opens = ("[TOOL_CALLS]",)
    inner = ("[CALL_ID]", "[ARGS]")

    def call_id(self, name: str) -> str:
        """Return an id of nine letters and digits."""
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in blake2b(name.encode(), digest_size=9).digest())

    def _other(self, final: bool) -> bool:
        """Take a call's name, with its arguments behind it; the text of an answer has a space before any brace."""
        head, brace, _ = self._buffer.partition("{")
        if not brace and not final and _HEAD_SO_FAR.fullmatch(head):
            return False
        name = _HEAD.fullmatch(head) if brace else None
        if name is None:
            return super()._other(final)
        self._begin(len(head), bare=False, reader=CallReader(name=name[1]))
        return True

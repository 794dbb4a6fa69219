"""Calls between <tool_call> tags whose arguments are elements; one that is JSON after all is read as well."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.postprocess.tools.element_reader import ElementReader, Form
from gateway.postprocess.tools.parser import JsonToolParser


class ElementToolParser(JsonToolParser, ABC):
    """A style says its tags and how a call begins; `known` are the functions' schemas of arguments, by name."""

    form: ClassVar[Form]
    head: ClassVar[re.Pattern[str]]

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self._schemas = known

    def _other(self, final: bool) -> bool:
        """Take the function's name; what stands there decides, never how the text was cut."""
        found = self.head.match(self._buffer)
        if found is None:
            if not final and self._may_be_head():
                return False
            return super()._other(final)
        schema = self._schemas.get(found[1])
        reader = ElementReader(found[1], schema if isinstance(schema, Mapping) else {}, self.form)
        self._begin(found.end(), bare=False, reader=reader)
        return True

    @abstractmethod
    def _may_be_head(self) -> bool:
        """Tell whether what is held may become a head."""

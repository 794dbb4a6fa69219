"""What the readers of calls that are not JSON share: text is held until a state takes some of it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.postprocess.tools.events import CallBegin, Event


class HeldReader:
    """Follows one call from behind the function's name on. A state takes text from `_held`, or says that it cannot."""

    def __init__(self, name: str, begin: Callable[[], bool]) -> None:
        self.name: str | None = name
        self.done = False
        self.rejected = False
        self.events: list[Event] = [CallBegin(name)]
        self._held = ""  # not passed on yet
        self._state = begin

    @property
    def may_be_call(self) -> bool:
        """Tell whether it may become a call: its name is read already."""
        return True

    def feed(self, text: str, at: int, end: int) -> int:
        """Read text[at:end]; returns how far it came, which is less than `end` only when the call is over."""
        self._held += text[at:end]
        while not self.done and self._held and self._state():
            pass
        return end - len(self._held) if self.done else end

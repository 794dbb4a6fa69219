"""A Lua script as servers know it: the text is sent once, then it is called by its digest."""

from __future__ import annotations

import hashlib


class Script:
    """What happens in one step on a server. It checks before it writes: one that fails half-way is not rolled back."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

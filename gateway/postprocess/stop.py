"""Stop strings over any split into tokens.

The stop string whose end comes first wins; of several that end there, the longest (it began first). Held back is the
longest end of the text that is a proper beginning of some stop string, never more: an Aho-Corasick automaton's state is
just that. When the held text can no longer become a stop string it is let go. Text that a request's `min_tokens` exempt
ends no stop string, but one may begin in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class _Node:
    __slots__ = ("depth", "fail", "longest", "next")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.next: dict[str, _Node] = {}
        self.fail: _Node | None = None
        self.longest = 0  # of the stop strings that end here, 0 if none


def _automaton(stops: Iterable[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.next.setdefault(char, _Node(node.depth + 1))
        node.longest = max(node.longest, len(stop))
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for char, child in node.next.items():
            fail = node.fail
            while fail is not None and char not in fail.next:
                fail = fail.fail
            child.fail = root if fail is None else fail.next[char]
            child.longest = max(child.longest, child.fail.longest)
            queue.append(child)
    return root


class StopMatcher:
    """Passes text on up to the first stop string; then `hit` is that string. `num_chars` counts what was let go.

    `shown`: the stop string that ended the text is passed on too.
    """

    def __init__(self, stops: tuple[str, ...], *, shown: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._root = _automaton(stops)
        self._node = self._root
        self._shown = shown
        self._held = ""
        self.hit: str | None = None
        self.num_chars = 0

    def feed(self, text: str, num_exempt: int = 0) -> str:
        """Return the text that is now sure not to be part of a stop string; none ends in its first `num_exempt`."""
        if self.hit is not None:
            return ""
        text = self._held + text
        exempt_until = len(self._held) + num_exempt
        node = self._node
        for at in range(len(self._held), len(text)):
            node = self._step(node, text[at])
            if node.longest and at >= exempt_until:
                start = at + 1 - node.longest
                self.hit = text[start : at + 1]
                self._held = ""
                return self._let_go(text[: at + 1] if self._shown else text[:start])
        while not node.next and node.fail is not None:  # a whole stop string that was exempt; its end may begin one
            node = node.fail
        self._node = node
        cut = len(text) - node.depth
        self._held = text[cut:]
        return self._let_go(text[:cut])

    def close(self) -> str:
        """Return what is held when the text ends without a stop string."""
        held, self._held, self._node = self._held, "", self._root
        return self._let_go(held)

    def _step(self, node: _Node, char: str) -> _Node:
        while True:
            found = node.next.get(char)
            if found is not None:
                return found
            if node.fail is None:
                return node
            node = node.fail

    def _let_go(self, text: str) -> str:
        self.num_chars += len(text)
        return text

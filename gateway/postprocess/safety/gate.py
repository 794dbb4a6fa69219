"""Holds text until it is judged: what passed the matching rules waits here, in order, for the verdicts on its window.

The gate judges nothing itself and waits for nothing: it hands windows out to `submit` and is told the verdicts. Held is
at most the open window and those at the judges; without a judging rule for a kind of text it passes straight through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from gateway.postprocess.delta import TextDelta
from gateway.postprocess.safety.hit import Delay, Hit
from gateway.postprocess.safety.policy import Direction, Rule, SafetyPolicy
from gateway.postprocess.safety.rule import REDACTED
from gateway.postprocess.safety.windows import Cutter

Verdict = Literal["pass", "flagged", "failed"]


class Window:
    """A stretch of text for the judges. `rules` speak once each; `told`: its hits and its replacement are out."""

    def __init__(self, direction: Direction, rules: tuple[Rule, ...], start: int) -> None:
        self.direction = direction
        self.rules = rules
        self.start = start
        self.text = ""
        self.told = False
        self._verdicts: dict[str, Verdict] = {}

    def tell(self, rule: Rule, verdict: Verdict) -> None:
        """Take a verdict."""
        self._verdicts[rule.id] = verdict

    @property
    def settled(self) -> bool:
        """Tell whether every rule has spoken."""
        return len(self._verdicts) == len(self.rules)

    def hits(self, digest: str) -> list[Hit]:
        """Return what the rules found, those that act on it first; a judge that failed blocks."""
        found = []
        for rule in self.rules:
            verdict = self._verdicts.get(rule.id)
            if verdict in ("flagged", "failed"):
                failed = verdict == "failed"
                action = "block" if failed else rule.action
                end = self.start + len(self.text)
                found.append(Hit(rule.id, action, self.start, end, self.direction, digest, failed))
        return sorted(found, key=lambda hit: ("block", "redact", "flag").index(hit.action))

    def replacement(self, rule_id: str) -> str:
        """Return what stands for the text when a rule redacts it."""
        return next((rule.replacement for rule in self.rules if rule.id == rule_id and rule.replacement), REDACTED)


Submit = Callable[[Window], None]


class _Waiting(msgspec.Struct):
    """A piece of text in the queue with the window that it waits for."""

    delta: TextDelta
    window: Window | None


class Gate:
    """The judged texts of one choice. `submit` must come back at once; `blocked_by` names the rule that blocked."""

    def __init__(self, policy: SafetyPolicy, submit: Submit) -> None:
        self._policy = policy
        self._submit = submit
        self._queue: deque[_Waiting] = deque()
        self._cutters: dict[Direction, Cutter] = {}
        self._open: dict[Direction, Window] = {}
        self._num_chars: dict[Direction, int] = {}
        self._num_pushed = self._num_held = 0
        self.delay = Delay(again=True)
        self.hits: list[Hit] = []
        self.blocked_by: str | None = None

    @property
    def empty(self) -> bool:
        """Tell whether nothing is held."""
        return not self._queue

    def push(self, deltas: list[TextDelta]) -> list[TextDelta]:
        """Take text; returns what may leave now."""
        for delta in deltas:
            self._break_off(delta)
            rules = self._policy.judged(delta.kind)
            if rules and delta.text:
                self._cut(delta, rules)
            else:
                self._queue.append(_Waiting(delta, self._open.get(delta.kind)))
        return self.take()

    def close(self) -> list[TextDelta]:
        """The text has ended: its last windows are complete."""
        for direction in tuple(self._open):
            self._end(direction)
        return self.take()

    def take(self) -> list[TextDelta]:
        """Return what may leave, in order, up to the first window that is not settled."""
        shown: list[TextDelta] = []
        while self._queue and (self._queue[0].window is None or self._queue[0].window.settled):
            piece = self._queue.popleft()
            self._num_held -= len(piece.delta.text)
            self._let_go(piece, shown)
            if self.blocked_by is not None:
                self._queue.clear()
                self._num_held = 0
        self.delay.note(self._num_pushed, self._num_held)
        return shown

    def _break_off(self, delta: TextDelta) -> None:
        """End the windows that this text does not go on with: those of other kinds, and of another call."""
        for direction in tuple(self._open):
            if direction != delta.kind or (direction == "tool" and not delta.text):
                self._end(direction)
                self._cutters[direction].restart()

    def _cut(self, delta: TextDelta, rules: tuple[Rule, ...]) -> None:
        kind = delta.kind
        if kind not in self._cutters:
            self._cutters[kind] = Cutter(min(rule.window_chars for rule in rules))
        pieces = self._cutters[kind].cut(delta.text)
        for number, (text, ends) in enumerate(pieces, start=1):
            start = self._num_chars.get(kind, 0)
            window = self._open.setdefault(kind, Window(kind, rules, start))
            window.text += text
            last = number == len(pieces)  # log probabilities never leave before their text
            logprobs = delta.logprobs if last else ()
            if text or logprobs:
                self._queue.append(_Waiting(msgspec.structs.replace(delta, text=text, logprobs=logprobs), window))
            self._num_chars[kind] = start + len(text)
            self._num_pushed += len(text)
            self._num_held += len(text)
            if ends:
                self._end(kind)

    def _end(self, direction: Direction) -> None:
        window = self._open.pop(direction)
        if window.text.strip():
            self._submit(window)
        else:
            for rule in window.rules:
                window.tell(rule, "pass")

    def _let_go(self, piece: _Waiting, shown: list[TextDelta]) -> None:
        window = piece.window
        found = window.hits(self._digest(window.text)) if window is not None else []
        if window is None or not found:
            shown.append(piece.delta)
            return
        first, window.told = not window.told, True
        if first:
            self.hits += found
        if found[0].action == "block":
            self.blocked_by = found[0].rule
        elif found[0].action == "flag":
            shown.append(piece.delta)
        elif first:
            shown.append(msgspec.structs.replace(piece.delta, text=window.replacement(found[0].rule), logprobs=()))

    def _digest(self, text: str) -> str:
        return self._policy.digest(text) if self._policy.digest else ""

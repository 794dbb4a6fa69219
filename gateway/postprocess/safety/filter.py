"""Applies a policy to one text as it streams: what a rule forbids never leaves, and nothing else is held for longer
than the rules need to decide.

At each moment what has been let go is a prefix of what the filter would make of the whole text. Held is the text from
the first place at which a match is open, no more than the longest match of the policy.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.postprocess.safety.match import Matcher
from gateway.postprocess.safety.policy import Direction, Rule, SafetyPolicy, Starters


class Hit(NamedTuple):
    """A rule matched characters start .. end - 1 of the text before filtering."""

    rule: str
    action: str
    start: int
    end: int


class _Scanner:
    """Finds the matches of some rules in a stream: leftmost, then longest, then first in the file."""

    def __init__(self, starters: Starters) -> None:
        self._starters = starters
        self._held = ""
        self._previous = ""
        self.num_chars = 0  # characters decided
        self.hits: list[Hit] = []

    def feed(self, text: str, *, final: bool) -> list[tuple[str, Rule | None]]:
        """Return decided stretches: text that no rule matches, and matches with their rule."""
        text = self._held + text
        parts: list[tuple[str, Rule | None]] = []
        at = clear = 0
        while at < len(text):
            starters = self._starters[text[at]]
            if not starters:
                at += 1
                continue
            end, rule, open_ = self._longest(starters, text, at, final)
            if open_:
                break
            if rule is None:
                at += 1
                continue
            parts += [(text[clear:at], None), (text[at:end], rule)]
            self.hits.append(Hit(rule.id, rule.action, self.num_chars + at, self.num_chars + end))
            at = clear = end
            if rule.action == "block":
                break
        parts.append((text[clear:at], None))
        self._previous = text[at - 1] if at else self._previous
        self._held = text[at:]
        self.num_chars += at
        return parts

    def _longest(
        self, starters: tuple[tuple[Rule, Matcher], ...], text: str, at: int, final: bool
    ) -> tuple[int, Rule | None, bool]:
        previous = text[at - 1] if at else self._previous
        best, best_rule = 0, None
        for rule, matcher in starters:
            end, open_ = matcher.match(text, at, previous, final=final)
            if open_:
                return 0, None, True
            if end > best:
                best, best_rule = end, rule
        return best, best_rule, False


class SafetyFilter:
    """A policy at work on one text. After a block, `blocked_by` names the rule and nothing more comes out.

    `num_chars` counts the characters of the text before filtering that are let go or redacted; `hidden` lists the
    redacted stretches.
    """

    def __init__(self, policy: SafetyPolicy, direction: Direction) -> None:
        self._enforced = _Scanner(policy.starters(direction, flagged=False))
        self._flagged = _Scanner(policy.starters(direction, flagged=True))
        self.blocked_by: str | None = None
        self.num_chars = 0
        self.hidden: list[tuple[int, int]] = []

    @property
    def hits(self) -> list[Hit]:
        """Return every match so far, the noted ones last."""
        return self._enforced.hits + self._flagged.hits

    def feed(self, text: str, *, final: bool = False) -> str:
        """Return the filtered text that no text to come can change."""
        if self.blocked_by is not None:
            return ""
        self._flagged.feed(text, final=final)
        shown: list[str] = []
        for part, rule in self._enforced.feed(text, final=final):
            end = self.num_chars + len(part)
            if rule is None:
                shown.append(part)
            elif rule.action == "block":
                self.blocked_by = rule.id
                break
            else:
                shown.append(rule.replacement)
                self.hidden.append((self.num_chars, end))
            self.num_chars = end
        return "".join(shown)


def check(policy: SafetyPolicy, text: str, direction: Direction) -> tuple[str, list[Hit], str | None]:
    """Filter a whole text: returns the filtered text, the matches, and the rule that blocks it, if one does."""
    safety = SafetyFilter(policy, direction)
    return safety.feed(text, final=True), safety.hits, safety.blocked_by

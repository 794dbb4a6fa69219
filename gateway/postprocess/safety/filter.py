"""Applies a policy to one text as it streams: what a rule forbids never leaves, and nothing else is held for longer
than the rules need to decide.

At each moment what has been let go is a prefix of what the filter would make of the whole text. Held is the text from
the first place at which a match is open, no more than the longest match of the policy.
"""

from __future__ import annotations

from gateway.postprocess.safety.hit import Delay, Hit
from gateway.postprocess.safety.json_text import PlainJson
from gateway.postprocess.safety.placeholders import Placeholders
from gateway.postprocess.safety.policy import Direction, SafetyPolicy
from gateway.postprocess.safety.scanner import Part, Scanner

__all__ = ["Hit", "SafetyFilter", "check"]


class SafetyFilter:
    """A policy at work on one text. After a block, `blocked_by` names the rule and nothing more comes out.

    `num_chars` counts the characters of the text before filtering that are let go or redacted; `hidden` lists the
    redacted stretches. Arguments of tools are JSON, unless `is_json` is False: their needless escapes are undone first.
    """

    def __init__(self, policy: SafetyPolicy, direction: Direction, *, is_json: bool = True) -> None:
        self._direction = direction
        self._plain = PlainJson() if direction == "tool" and is_json else None
        self._enforced = Scanner(policy.automaton(direction, flagged=False))
        flagged = policy.automaton(direction, flagged=True)
        self._flagged = Scanner(flagged) if flagged.max_length else None
        self._placeholders = policy.placeholders if policy.placeholders is not None else Placeholders()
        self._acted: list[Hit] = []
        self._noted: list[Hit] = []
        self._digest = policy.digest
        self.blocked_by: str | None = None
        self.num_chars = 0
        self.hidden: list[tuple[int, int]] = []
        self.delay = Delay()

    @property
    def hits(self) -> list[Hit]:
        """Return every match so far, the noted ones last."""
        return self._acted + self._noted

    @property
    def num_held(self) -> int:
        """Return how many characters may still become a match."""
        return self._enforced.num_held

    def feed(self, text: str, *, final: bool = False) -> str:
        """Return the filtered text that no text to come can change."""
        if self.blocked_by is not None:
            return ""
        if self._plain is not None:
            text = self._plain.feed(text, final=final)
        if self._flagged is not None:
            before = self._flagged.num_chars
            self._note(self._flagged.feed(text, final=final), before, self._noted)
        before = self.num_chars
        parts = self._enforced.feed(text, final=final)
        if len(parts) == 1 and parts[0].finder is None:
            shown = parts[0].text
        else:
            self._note(parts, before, self._acted)
            shown = "".join(self._shown(part) for part in parts)
        self.num_chars = self._enforced.num_chars
        if self.blocked_by is not None:
            self.num_chars = self._acted[-1].start
        self.delay.note(self._enforced.num_chars + self.num_held, self.num_held)
        return shown

    def _shown(self, part: Part) -> str:
        if part.finder is None:
            return part.text
        if part.finder.rule.action == "block":
            self.blocked_by = part.finder.rule.id
            return ""
        return "" if part.goes_on else self._placeholders.of(part.finder, part.text)

    def _note(self, parts: list[Part], at: int, hits: list[Hit]) -> None:
        for part in parts:
            end = at + len(part.text)
            if part.finder is not None:
                rule = part.finder.rule
                if part.goes_on:
                    hits[-1] = hits[-1]._replace(end=end)
                else:
                    digest = self._digest(part.text) if self._digest else ""
                    hits.append(Hit(rule.id, rule.action, at, end, self._direction, digest))
                if rule.action == "redact":
                    self.hidden.append((at, end))
            at = end


def check(policy: SafetyPolicy, text: str, direction: Direction) -> tuple[str, list[Hit], str | None]:
    """Filter a whole text: returns the filtered text, the matches, and the rule that blocks it, if one does."""
    safety = SafetyFilter(policy, direction)
    return safety.feed(text, final=True), safety.hits, safety.blocked_by

"""The safety policy: a TOML file of rules, checked as a whole when it is loaded.

    [[rule]]
    id = "card-number"
    kind = "pattern"                      # or "terms"
    pattern = '\\d{4}([ -]?\\d{4}){3}'       # terms = ["...", "..."]
    action = "redact"                     # or "block" (ends the choice with content_filter), "flag" (only noted)
    directions = ["answer", "reasoning"]  # also "prompt"; the default is all three
    replacement = "[removed]"             # of redact
    whole_words = false                   # only matches with a word's edge on both sides

Terms are compared case folded and compatibility normalised; patterns see the text as it is. Of matches that overlap the
one that starts first counts, of these the longest, of equal ones the rule that stands first.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from gateway.postprocess.safety.match import Matcher
from gateway.postprocess.safety.patterns import PatternMatcher
from gateway.postprocess.safety.terms import TermMatcher
from wire.errors import StartError

Direction = Literal["answer", "reasoning", "prompt"]


class SafetyPolicyError(StartError):
    """The policy file is malformed; the message names the rule."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule as it stands in the file."""

    id: str
    kind: Literal["terms", "pattern"]
    action: Literal["redact", "block", "flag"]
    terms: tuple[str, ...] = ()
    pattern: str = ""
    directions: tuple[Direction, ...] = ("answer", "reasoning", "prompt")
    replacement: str = "[redacted]"
    whole_words: bool = False

    def matcher(self) -> Matcher:
        """Build what finds this rule's matches. Raises ValueError."""
        if self.kind == "terms":
            if not self.terms or self.pattern:
                raise ValueError("kind 'terms' needs a non-empty `terms` list and no `pattern`")
            return TermMatcher(self.terms, whole_words=self.whole_words)
        if not self.pattern or self.terms:
            raise ValueError("kind 'pattern' needs a `pattern` and no `terms`")
        return PatternMatcher(self.pattern, whole_words=self.whole_words)


class Starters(dict[str, tuple[tuple[Rule, Matcher], ...]]):
    """Character -> the rules that may match from it on; most characters start nothing, and cost one look-up."""

    def __init__(self, rules: list[tuple[Rule, Matcher]]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, char: str) -> tuple[tuple[Rule, Matcher], ...]:
        found = tuple(pair for pair in self._rules if pair[1].may_start(char))
        if len(self) < 20_000:
            self[char] = found
        return found


class SafetyPolicy:
    """Checked rules with their matchers, shared by all requests of a process."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._starters: dict[tuple[Direction, bool], Starters] = {}
        self.rules: list[tuple[Rule, Matcher]] = []
        for rule in rules:
            if any(rule.id == other.id for other, _ in self.rules):
                raise SafetyPolicyError(f"rule {rule.id!r}: the id is used twice")
            try:
                self.rules.append((rule, rule.matcher()))
            except ValueError as error:
                raise SafetyPolicyError(f"rule {rule.id!r}: {error}") from None

    @classmethod
    def load(cls, path: Path) -> SafetyPolicy:
        """Read a policy file. Raises SafetyPolicyError that names the file and the rule."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SafetyPolicyError(f"{path}: {error.strerror}") from error
        except SafetyPolicyError as error:
            raise SafetyPolicyError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, source: str) -> SafetyPolicy:
        """Read a policy from TOML text. Raises SafetyPolicyError that names the rule."""
        try:
            data = tomllib.loads(source)
        except tomllib.TOMLDecodeError as error:
            raise SafetyPolicyError(f"not TOML: {error}") from None
        tables = data.pop("rule", [])
        if data or not isinstance(tables, list):
            raise SafetyPolicyError(f"unknown key {next(iter(data), 'rule')!r}; a policy holds [[rule]] tables only")
        rules = []
        for number, table in enumerate(tables, start=1):
            name = repr(table["id"]) if isinstance(table, dict) and "id" in table else f"number {number}"
            try:
                rules.append(msgspec.convert(table, Rule))
            except msgspec.ValidationError as error:
                raise SafetyPolicyError(f"rule {name}: {error}") from None
        return cls(tuple(rules))

    def starters(self, direction: Direction, *, flagged: bool) -> Starters:
        """Return the rules of a direction, those that only note a match or those that act on it."""
        found = self._starters.get((direction, flagged))
        if found is None:
            rules = [
                (rule, matcher)
                for rule, matcher in self.rules
                if direction in rule.directions and (rule.action == "flag") == flagged
            ]
            found = self._starters[direction, flagged] = Starters(rules)
        return found

    def has_rules(self, direction: Direction) -> bool:
        """Tell whether any rule applies to a direction."""
        return any(direction in rule.directions for rule, _ in self.rules)

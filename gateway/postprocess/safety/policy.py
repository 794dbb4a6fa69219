"""The safety policy: a TOML file of rules, checked as a whole when it is loaded. docs/safety.md tells how to write one.

    [[rule]]
    id = "cards"
    kind = "detect"                       # or "terms", "pattern", "classifier", "callout"
    detect = ["card", "iban"]
    action = "redact"                     # or "block" (ends the choice with content_filter), "flag" (only noted)
    directions = ["answer", "prompt"]     # also "reasoning", "tool"; the default is all four

Of matches that overlap the one that starts first counts, of these the longest, of equal ones the rule that stands
first.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.postprocess.safety.automaton import Automaton
from gateway.postprocess.safety.linear.model import BUILTIN, LinearModel
from gateway.postprocess.safety.placeholders import Placeholders
from gateway.postprocess.safety.rule import Direction, Finder, Rule, finders
from wire.errors import StartError

__all__ = ["Direction", "Rule", "SafetyPolicy", "SafetyPolicyError"]

_MAX_RULES = 1000


class SafetyPolicyError(StartError):
    """The policy file is malformed; the message names the rule and the field."""


class SafetyPolicy:
    """Checked rules with what finds their matches, shared by all requests of a process."""

    def __init__(self, rules: Iterable[Rule], *, directory: Path | None = None) -> None:
        self.rules = tuple(rules)
        self.directory = directory
        self.placeholders: Placeholders | None = None
        self.digest: Callable[[str], str] | None = None  # names a match in the audit log without telling it
        self._first = frozenset(rule.id for rule in self.rules if rule.audit == "first")
        self._finders: list[Finder] = []
        self.linear: dict[str, LinearModel] = {}
        self.files = tuple(self._path(name) for rule in self.rules for name in (rule.terms_file, rule.weights) if name)
        self._automata: dict[tuple[Direction, bool], Automaton] = {}
        seen: set[str] = set()
        for rule in self.rules:
            if rule.id in seen:
                raise SafetyPolicyError(f"rule {rule.id!r}: id: is used twice")
            seen.add(rule.id)
            try:
                rule.check()
                self._build(rule)
            except ValueError as error:
                raise SafetyPolicyError(f"rule {rule.id!r}: {error}") from None

    def _path(self, name: str) -> Path:
        return (self.directory or Path()) / name

    def _build(self, rule: Rule) -> None:
        if not rule.is_judged:
            self._finders += finders(rule, len(self._finders), self.directory)
        elif rule.kind == "classifier" and not rule.model:
            try:
                self.linear[rule.id] = LinearModel.load(self._path(rule.weights) if rule.weights else BUILTIN)
            except ValueError as error:
                raise ValueError(f"weights: {error}") from None

    @classmethod
    def load(cls, path: Path) -> SafetyPolicy:
        """Read a policy file. Raises SafetyPolicyError that names the file and the rule."""
        path = Path(path)
        try:
            return cls.parse(path.read_text(encoding="utf-8"), directory=path.parent)
        except OSError as error:
            raise SafetyPolicyError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SafetyPolicyError(f"{path}: not UTF-8: {error}") from error
        except SafetyPolicyError as error:
            raise SafetyPolicyError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, source: str, *, directory: Path | None = None) -> SafetyPolicy:
        """Read a policy from TOML text. Raises SafetyPolicyError that names the rule and the field."""
        try:
            data = tomllib.loads(source)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SafetyPolicyError(f"not TOML: {error}") from None
        tables = data.pop("rule", [])
        if data or not isinstance(tables, list):
            raise SafetyPolicyError(f"unknown key {next(iter(data), 'rule')!r}; a policy holds [[rule]] tables only")
        if len(tables) > _MAX_RULES:
            raise SafetyPolicyError(
                f"{len(tables)} rules; at most {_MAX_RULES} are allowed (terms_file takes long lists)"
            )
        return cls([_rule(table, number) for number, table in enumerate(tables, start=1)], directory=directory)

    def for_reply(self) -> SafetyPolicy:
        """Return the policy for the texts of one reply: they share placeholders."""
        own = copy.copy(self)
        own.placeholders = Placeholders()
        return own

    def automaton(self, direction: Direction, *, flagged: bool) -> Automaton:
        """Return the rules of a direction, those that only note a match or those that act on it."""
        found = self._automata.get((direction, flagged))
        if found is None:
            chosen = [
                finder
                for finder in self._finders
                if direction in finder.rule.directions and (finder.rule.action == "flag") == flagged
            ]
            found = self._automata[direction, flagged] = Automaton(chosen)
        return found

    def judged(self, direction: Direction) -> tuple[Rule, ...]:
        """Return the rules of a direction that show windows of text to a judge."""
        return tuple(rule for rule in self.rules if rule.is_judged and direction in rule.directions)

    def audits_first(self, rule_id: str) -> bool:
        """Tell whether a prompt that this rule matched must stand in the audit log before it is admitted."""
        return rule_id in self._first

    def has_rules(self, direction: Direction) -> bool:
        """Tell whether any rule applies to a direction."""
        return any(direction in rule.directions for rule in self.rules)

    def max_held(self, direction: Direction) -> int:
        """Return the most characters that are ever held back: the longest match, and the longest window."""
        windows = [rule.window_chars for rule in self.judged(direction)]
        return self.automaton(direction, flagged=False).max_length + max(windows, default=0)


def _rule(table: Any, number: int) -> Rule:
    name = repr(table["id"]) if isinstance(table, dict) and "id" in table else f"number {number}"
    try:
        return msgspec.convert(table, Rule)
    except msgspec.ValidationError as error:
        raise SafetyPolicyError(f"rule {name}: {_said(str(error))}") from None


def _said(message: str) -> str:
    """Put the field first: `Expected `int`, got `str` - at `$.x`` becomes `x: Expected ...`."""
    said, _, at = message.partition(" - at `$.")
    return f"{at.rstrip('`')}: {said}" if at else said

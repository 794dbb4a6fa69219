"""One rule of a policy as it stands in the file, and the finders of its matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gateway.postprocess.safety.detectors import DETECTORS
from gateway.postprocess.safety.folding import folding
from gateway.postprocess.safety.match import Edge, Matcher
from gateway.postprocess.safety.patterns import FoldedPatternMatcher, PatternMatcher
from gateway.postprocess.safety.rest import Rest
from gateway.postprocess.safety.terms import TermMatcher

Direction = Literal["answer", "reasoning", "prompt", "tool"]
Action = Literal["redact", "block", "flag"]
Kind = Literal["terms", "pattern", "detect", "classifier", "callout"]

REDACTED = "[redacted]"
_MAX_REPLACEMENT = 200

# kind -> the fields it needs (one of each group), and those it may have besides the ones of every rule
_NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "terms": (("terms", "terms_file"),),
    "pattern": (("pattern",),),
    "detect": (("detect",),),
    "classifier": (),
    "callout": (("url",),),
}
_JUDGED = ("threshold", "window_chars", "timeout_s", "on_error")
_MAY: dict[str, tuple[str, ...]] = {
    "terms": ("terms", "terms_file", "whole_words", "lookalikes", "ignore_accents"),
    "pattern": ("pattern", "whole_words"),
    "detect": ("detect", "span"),
    "classifier": ("model", "weights", "question", "flagged_answer", *_JUDGED),
    "callout": ("url", "token_env", *_JUDGED),
}
_EVERY = ("id", "kind", "action", "directions", "replacement", "category", "audit")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. Which fields belong to which kind is told in docs/safety.md."""

    id: str
    kind: Kind
    action: Action
    directions: tuple[Direction, ...] = ("answer", "reasoning", "prompt", "tool")
    replacement: str = ""
    category: str = ""
    audit: Literal["after", "first"] = "after"
    terms: tuple[str, ...] = ()
    terms_file: str = ""
    pattern: str = ""
    detect: tuple[str, ...] = ()
    span: Literal["whole", "domain"] = "whole"
    whole_words: bool = False
    lookalikes: bool = True
    ignore_accents: bool = False
    model: str = ""
    weights: str = ""
    question: str = ""
    flagged_answer: str = "yes"
    url: str = ""
    token_env: str = ""
    threshold: float = 0.5
    window_chars: int = 400
    timeout_s: float = 2.0
    on_error: Literal["block", "pass", ""] = ""

    @property
    def is_judged(self) -> bool:
        """Tell whether windows of text are shown to a judge, instead of matches being found."""
        return self.kind in ("classifier", "callout")

    @property
    def fails_closed(self) -> bool:
        """Tell whether text is blocked that the judge could not judge; a rule that only notes has nothing to close."""
        return self.on_error == "block" or (not self.on_error and self.action != "flag")

    def check(self) -> None:
        """Raise ValueError, naming the field, for what no type can tell."""
        if not self.id.strip():
            raise ValueError("id: must not be empty")
        if not self.directions:
            raise ValueError("directions: at least one of answer, reasoning, prompt, tool is needed")
        if self.audit == "first" and "prompt" not in self.directions:
            raise ValueError("audit: 'first' is about prompts, and `directions` leaves them out")
        if len(self.replacement) > _MAX_REPLACEMENT:
            raise ValueError(f"replacement: at most {_MAX_REPLACEMENT} characters are allowed")
        given = [name for name in self.__struct_fields__ if getattr(self, name) != _DEFAULTS.get(name)]
        for name in given:
            if name not in _EVERY and name not in _MAY[self.kind]:
                raise ValueError(f"{name}: does not belong to kind {self.kind!r}")
        for group in _NEEDS[self.kind]:
            if not any(name in given for name in group):
                raise ValueError(f"{group[0]}: kind {self.kind!r} needs a non-empty `{'` or `'.join(group)}`")
        if self.is_judged:
            self._check_judged()

    def _check_judged(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError("threshold: must lie between 0 and 1")
        if not 20 <= self.window_chars <= 4000:
            raise ValueError("window_chars: must lie in 20..4000")
        if not 0 < self.timeout_s <= 60:
            raise ValueError("timeout_s: must be positive and at most 60")
        if self.model and self.weights:
            raise ValueError("weights: not together with `model`")
        if bool(self.model) != bool(self.question):
            raise ValueError("question: goes with `model`: what the model is asked about the text")
        if self.kind == "callout" and not self.url.startswith(("http://", "https://")):
            raise ValueError("url: must begin with http:// or https://")


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Rule)}


class Finder(NamedTuple):
    """What finds one sort of match of a rule. `order` is its place in the file, `name` and `numbered` its placeholder.

    `check` looks at the folded text of a match; a match that fails is none.
    """

    order: int
    rule: Rule
    matcher: Matcher
    edge: Edge = "none"
    check: Callable[[str], bool] | None = None
    rest: Rest | None = None
    replacement: str = REDACTED

    @property
    def after(self) -> Edge:
        """Return what must lie behind a match: nothing where a rest follows."""
        return "none" if self.rest is not None else self.edge

    def __hash__(self) -> int:
        return self.order

    def __eq__(self, other: object) -> bool:
        return self is other


def finders(rule: Rule, order: int, directory: Path | None) -> list[Finder]:
    """Return the finders of a rule, numbered from `order` on. Raises ValueError that names the field."""
    replacement = rule.replacement or REDACTED
    edge: Edge = "word" if rule.whole_words else "none"
    if rule.kind == "terms":
        folded = folding(lookalikes=rule.lookalikes, accents=not rule.ignore_accents)
        with _field("terms"):
            matcher = TermMatcher((*rule.terms, *_read_terms(rule.terms_file, directory)), folded)
        return [Finder(order, rule, matcher, edge, replacement=replacement)]
    if rule.kind == "pattern":
        with _field("pattern"):
            return [Finder(order, rule, PatternMatcher(rule.pattern), edge, replacement=replacement)]
    return _detectors(rule, order)


def _detectors(rule: Rule, order: int) -> list[Finder]:
    found: list[Finder] = []
    for name in rule.detect:
        detector = DETECTORS.get(name)
        if detector is None:
            raise ValueError(f"detect: {name!r} is none of {', '.join(DETECTORS)}")
        typed = rule.replacement or (f"[{detector.name}_{{n}}]" if detector.numbered else f"[{detector.name}]")
        part = detector.domain if rule.span == "domain" else ()
        for pattern in part or detector.patterns:
            matcher = FoldedPatternMatcher(pattern)
            found.append(Finder(order + len(found), rule, matcher, detector.edge, detector.check, detector.rest, typed))
    if rule.span == "domain" and not any(DETECTORS[name].domain for name in rule.detect):
        raise ValueError("span: none of what this rule detects has a domain; it goes with `email`")
    return found


@contextmanager
def _field(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_terms(name: str, directory: Path | None) -> tuple[str, ...]:
    """Return the terms of a file beside the policy, one a line; empty lines and lines that begin with # are skipped."""
    if not name:
        return ()
    path = (directory or Path()) / name
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))

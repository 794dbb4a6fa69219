"""Finds where thinking begins and ends, by the way a model marks it: with tags, or with channels."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from model_svc.engine.byte_matcher import ByteMatcher
from model_svc.engine.channels import BeginningOfThought, EndOfThought
from wire.messages import ReasoningPlan


class Landing(NamedTuple):
    """What must follow a token that was drawn, and by whom thinking has ended there."""

    rest: tuple[int, ...]
    ended_by: str


class Boundary(Protocol):
    """Finds where thinking begins, or ends, in bytes that come in pieces; see ByteMatcher."""

    @property
    def num_held(self) -> int:
        """How many of the last bytes are undecided."""
        ...

    def passes(self, data: bytes) -> bool:
        """Whether the next piece need not be scanned."""
        ...

    def scan(self, data: bytes) -> tuple[int, int] | None:
        """Take the next piece; return (begin, end) of the first boundary in it."""
        ...

    def reset(self) -> None:
        """Forget the undecided bytes."""
        ...


def boundary(plan: ReasoningPlan, *, thinks: bool, begun: bool = False) -> Boundary:
    """Return what finds the next boundary of a text that thinks or answers; `begun`: the text begins here."""
    if plan.channels:
        return EndOfThought(strict=plan.leads) if thinks else BeginningOfThought(begun=begun)
    return ByteMatcher(plan.close_tag if thinks else plan.open_tag)

"""How much ordinary text the detectors hold: `python -m loadtest.hold [FILE ...]`.

Nothing is near a match in these texts, so all that is held is the price of not knowing what comes. For each detector:
the share of tokens of which something waits, how many tokens later a character leaves in the mean and at the most.
Files are ours unless given: a licence (prose) and the answers of a chat.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from gateway.postprocess.safety.detectors import DETECTORS
from gateway.postprocess.safety.policy import Rule, SafetyPolicy
from loadtest.safety import delays, pieces_of, run

_ROOT = Path(__file__).parent
_TEXTS = (_ROOT.parent / "LICENSE", _ROOT / "chat_sample.md")


class Held(NamedTuple):
    """Of one text under one rule: share of tokens that wait, and characters' delays in tokens."""

    share: float
    mean: float
    most: int


def held(rule: Rule, text: str) -> Held:
    """Measure. The text must have no match."""
    pieces = pieces_of(text)
    late = delays(pieces, run(SafetyPolicy([rule]), pieces, 1).arrivals)
    waiting, at = 0, 0
    for piece in pieces:
        waiting += any(late[at : at + len(piece)])
        at += len(piece)
    return Held(waiting / len(pieces), statistics.mean(late), max(late))


def rules() -> dict[str, Rule]:
    """Return a rule for each detector, and those that somebody would choose together."""

    def rule(*names: str, domain: bool = False) -> Rule:
        return Rule(id="d", kind="detect", action="redact", detect=names, span="domain" if domain else "whole")

    return {
        **{name: rule(name) for name in DETECTORS},
        "email, span = domain": rule("email", domain=True),
        "all": rule(*DETECTORS),
        "all, span = domain": rule(*DETECTORS, domain=True),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=_TEXTS)
    for file in parser.parse_args().files:
        text = file.read_text(encoding="utf-8")
        sys.stdout.write(f"\n{file.name}: {len(pieces_of(text))} tokens\n")
        for name, rule in rules().items():
            found = held(rule, text)
            sys.stdout.write(
                f"{name:22} {found.share:6.1%} of tokens wait; in tokens: mean {found.mean:.2f}, most {found.most}\n"
            )


if __name__ == "__main__":
    main()

"""`headrace safety test`: shows what each rule of a policy does to a text, without any server.

Rules that match and the linear classifier run here. A rule that asks a served model or an HTTP judge is named, not
asked: that needs the server (POST /v1/moderations).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.gate import Window
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import Direction, SafetyPolicy
from gateway.postprocess.safety.windows import windows

_EXCERPT = 60


def main(policy_path: Path, text_path: Path, direction: Direction, out: TextIO) -> int:
    """Print the findings. Raises SafetyPolicyError for a faulty policy, OSError for an unreadable text."""
    policy = SafetyPolicy.load(policy_path)
    raw = sys.stdin.buffer.read() if str(text_path) == "-" else text_path.read_bytes()
    text = raw.decode("utf-8", "replace")
    shown, hits, blocked_by = check(policy, text, direction)
    left, judged = _judged(policy, shown, direction) if blocked_by is None else (shown, [])
    blocked_by = blocked_by or next((hit.rule for hit in judged if hit.action == "block"), None)
    rules = [rule for rule in policy.rules if direction in rule.directions]
    num_rules = len(policy.rules)
    out.write(f"{num_rules} rule{'' if num_rules == 1 else 's'}, {len(rules)} for {direction}; ")
    out.write(f"at most {policy.max_held(direction)} characters are held back\n\n")
    for rule in rules:
        places = [(hit, text) for hit in hits if hit.rule == rule.id]
        places += [(hit, shown) for hit in judged if hit.rule == rule.id]
        asked = rule.kind == "callout" or bool(rule.model)
        found = "not asked here" if asked else "1 match" if len(places) == 1 else f"{len(places)} matches"
        out.write(f"{rule.id} ({rule.kind}, {rule.action}): {found}\n")
        out.writelines(
            f"    {hit.start}-{hit.end}  {_excerpt(source[hit.start : hit.end])}\n" for hit, source in places
        )
    out.write(f"\n--- what leaves{f', up to the block by {blocked_by}' if blocked_by else ''} ---\n{left}\n")
    return 0


def _judged(policy: SafetyPolicy, text: str, direction: Direction) -> tuple[str, list[Hit]]:
    """Return what the linear classifiers leave of a text, and what they find, up to the first block."""
    rules = policy.judged(direction)
    if not rules:
        return text, []
    left: list[str] = []
    found: list[Hit] = []
    at = 0
    for part in windows(text, min(rule.window_chars for rule in rules)):
        window = Window(direction, rules, at)
        window.text = part
        for rule in rules:
            sure = policy.linear[rule.id].score(part) if rule.id in policy.linear and part.strip() else 0.0
            window.tell(rule, "flagged" if sure >= rule.threshold else "pass")
        hits = window.hits("")
        found += hits
        if hits and hits[0].action == "block":
            break
        redacted = hits and hits[0].action == "redact"
        left.append(window.replacement(hits[0].rule) if redacted else part)
        at += len(part)
    return "".join(left), found


def _excerpt(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _EXCERPT else f"{shown[: _EXCERPT - 4]}...{shown[-1]}"

"""The benchmark of the safety rules measures what it says."""

from __future__ import annotations

import random
import sys

import pytest

from gateway.postprocess.safety.policy import Rule, SafetyPolicy
from loadtest import safety


def test_a_delay_is_counted_in_tokens_for_each_character() -> None:
    assert safety.delays(["ab", "c", "d"], [(1, "a"), (3, "bcd")]) == [0, 2, 1, 0]


def test_a_leak_is_a_secret_that_can_be_read_in_what_left() -> None:
    assert safety.leaks([(1, "my SECR"), (2, "et")], ["secret", "other"]) == ["secret"]


def test_the_pieces_are_the_text_and_rules_hold_them_back() -> None:
    text = safety.make_text(random.Random(1), 60, ["a@b.org", "zorgblat"])
    pieces = safety.pieces_of(text)
    assert "".join(pieces) == text
    policy = SafetyPolicy([Rule(id="m", kind="detect", action="redact", detect=("email",))])
    assert safety.leaks(safety.run(policy, pieces, 1).arrivals, ["a@b.org", "zorgblat"]) == ["zorgblat"]


def test_it_runs_and_leaks_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["safety", "--words", "300", "--terms", "50", "--rounds", "1"])
    safety.main()
    printed = capsys.readouterr().out
    assert "50 terms" in printed and "leaked 0 of" in printed

"""Text waits for its judges in order; what leaves is the same in any split and whatever order the verdicts come in."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.delta import TextDelta
from gateway.postprocess.safety.gate import Gate, Window
from gateway.postprocess.safety.policy import Rule, SafetyPolicy
from gateway.postprocess.safety.windows import windows

PARTS = ["This one is quite all right. ", "bad words stand in this one! ", "ugly ones in that one?\n", "No. ", "x" * 50]
SENTENCES = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
MAX_CHARS = 40


def policy(action: str = "redact", **fields: object) -> SafetyPolicy:
    judged = {"kind": "classifier", "window_chars": MAX_CHARS, **fields}
    return SafetyPolicy(
        [Rule(id="bad", action=action, **judged), Rule(id="ugly", action="redact", replacement="[ugly]", **judged)]  # type: ignore[arg-type]
    )


def judge(window: Window) -> None:
    for rule in window.rules:
        window.tell(rule, "flagged" if rule.id in window.text else "pass")


def whole(text: str, action: str) -> tuple[str, str | None]:
    shown = ""
    for window in windows(text, MAX_CHARS):
        if "bad" in window and action == "block":
            return shown, "bad"
        replaced = "[redacted]" if "bad" in window and action == "redact" else "[ugly]" if "ugly" in window else window
        shown += replaced
    return shown, None


@given(SENTENCES, st.lists(st.integers(1, 9), max_size=60), st.sampled_from(["redact", "block", "flag"]), st.randoms())
def test_what_leaves_is_that_of_the_whole_text(text: str, sizes: list[int], action: str, rnd: random.Random) -> None:
    asked: list[Window] = []
    gate = Gate(policy(action), asked.append)
    shown, at = "", 0
    expected, blocked_by = whole(text, action)
    for size in (*sizes, len(text)):
        deltas = gate.push([TextDelta(kind="answer", text=text[at : at + size])])
        at += size
        while asked and rnd.random() < 0.5:
            judge(asked.pop(rnd.randrange(len(asked))))
        shown += "".join(delta.text for delta in deltas + gate.take())
        assert expected.startswith(shown)
    shown += "".join(delta.text for delta in gate.close())
    for window in asked:
        judge(window)
    shown += "".join(delta.text for delta in gate.take())
    assert shown == expected
    assert gate.blocked_by == blocked_by
    assert gate.empty


@given(SENTENCES)
def test_a_window_never_passes_its_bound_and_nothing_is_lost(text: str) -> None:
    cut = windows(text, MAX_CHARS)
    assert all(len(window) <= MAX_CHARS for window in cut)
    assert "".join(cut) == text


def test_nothing_of_a_window_leaves_before_its_verdict_and_all_leaves_with_it() -> None:
    asked: list[Window] = []
    gate = Gate(policy("block"), asked.append)
    text = "This one is quite all right."
    assert all(gate.push([TextDelta(kind="answer", text=char)]) == [] for char in text)
    assert asked == []
    assert gate.push([TextDelta(kind="answer", text=" A")]) == []
    assert [window.text for window in asked] == [text]
    judge(asked[0])
    assert "".join(delta.text for delta in gate.take()) == text
    assert gate.hits == []
    assert gate.delay.max_chars == len(text) + 2


def test_text_of_a_kind_without_a_judge_goes_straight_through_but_not_past_what_waits() -> None:
    asked: list[Window] = []
    gate = Gate(policy("block", directions=("answer",)), asked.append)
    reasoning = TextDelta(kind="reasoning", text="hm")
    assert gate.push([reasoning]) == [reasoning]
    assert gate.push([TextDelta(kind="answer", text="so"), reasoning]) == []
    judge(asked[0])
    assert [delta.text for delta in gate.take()] == ["so", "hm"]


def test_what_a_judge_finds_is_noted_once_with_its_place() -> None:
    asked: list[Window] = []
    gate = Gate(policy("flag"), asked.append)
    gate.push([TextDelta(kind="answer", text=part) for part in ("This one is quite all right. ", "bad ", "one")])
    gate.close()
    for window in asked:
        judge(window)
    assert "".join(delta.text for delta in gate.take()).endswith("bad one")
    assert [(hit.rule, hit.action, hit.start, hit.end) for hit in gate.hits] == [("bad", "flag", 28, 36)]


def test_a_judge_that_failed_blocks_and_says_so() -> None:
    asked: list[Window] = []
    gate = Gate(policy("redact"), asked.append)
    gate.push([TextDelta(kind="answer", text="one")])
    gate.close()
    asked[0].tell(asked[0].rules[0], "failed")
    assert gate.take() == []
    asked[0].tell(asked[0].rules[1], "pass")
    assert gate.take() == []
    assert gate.blocked_by == "bad"
    assert [(hit.action, hit.failed) for hit in gate.hits] == [("block", True)]

"""Figures by effort: the questions, what counts as right, the table and the plot."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from loadtest.effort import Reply, is_right, plot, questions, row, table


def test_the_questions_are_the_same_in_every_run_and_hold_their_answers() -> None:
    assert questions(12) == questions(12)
    for question in questions(3):
        a, sign, b = question.text.removeprefix("What is ").removesuffix("?").replace("times", "*").split()
        assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == question.answer


@pytest.mark.parametrize(("text", "right"), [
    ("42", True), ("It is 40 + 2 = 42.", True), ("42 is not 43", False), ("", False), ("no", False), ("1,042", False),
])  # fmt: skip
def test_the_last_number_of_an_answer_counts(text: str, right: bool) -> None:
    assert is_right(text, 42) is right
    assert is_right("1,042 in all", 1042)


def test_the_figures_are_means_over_all_and_shares_of_those_that_thought() -> None:
    replies = [Reply(True, 10, 4, 20, "model"), Reply(False, 20, 6, 20, "budget"), Reply(False, 0, 2, 20, None)]
    found = row("low", replies)
    assert (round(found.right), found.thinking, found.longest, found.answer, found.by_budget) == (33, 10, 20, 4, 50)
    assert "| low | 20 | 33 % | 10 / 20 | 4 | 50 % |" in table([found])
    drawing = ElementTree.fromstring(plot([found, found], "a title"))
    assert "33 % right" in "".join(drawing.itertext())

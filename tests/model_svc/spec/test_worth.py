"""How many guesses pay: cheap rows and good guesses long drafts, dear rows or bad guesses none."""

from __future__ import annotations

import pytest

from model_svc.spec.worth import Acceptance, best


def expected(acceptance: Acceptance, matched: int) -> float:
    return sum(acceptance.chances(matched, 0, 8))


def test_guesses_come_true_only_with_all_before_them() -> None:
    fresh = Acceptance()
    assert fresh.rate(0) == pytest.approx(0.5)
    assert fresh.chances(0, 0, 2) == pytest.approx([0.5, 0.25])
    assert fresh.chances(0, 1, 3) == pytest.approx([0.25, 0.125])  # behind one that is in flight
    assert len(fresh.chances(0, 0, 99)) == 3  # the fourth is hardly ever right
    assert fresh.chances(0, 0, 0) == []


def test_a_longer_match_promises_more() -> None:
    promised = [expected(Acceptance(), matched) for matched in range(1, 9)]
    assert promised == sorted(promised)
    assert promised[0] < 0.35 and promised[-1] > 2


def test_wrong_guesses_end_drafts_and_right_ones_lengthen_them() -> None:
    bad, good = Acceptance(), Acceptance()
    for _ in range(12):
        bad.note(0, 4, 2)
        good.note(4, 4, 2)
    assert expected(bad, 2) < 0.2 and expected(good, 2) > 6
    for _ in range(200):  # and no luck is for ever
        good.note(0, 4, 2)
        bad.note(4, 4, 2)
    assert expected(good, 2) < 0.2 and expected(bad, 2) > 6


def test_what_lies_behind_a_miss_says_nothing() -> None:
    short, long = Acceptance(), Acceptance()
    short.note(1, 2, 4)
    long.note(1, 9, 4)
    assert short.rate(4) == long.rate(4)


def free(rows: int) -> float:
    return 0.0 * rows


def dear(rows: int) -> float:
    return 0.5 + 0.0 * rows


def test_as_many_are_checked_as_make_the_answer_fastest() -> None:
    fresh = [[0.5, 0.25, 0.125]]
    assert best(fresh, lambda rows: 0.15 * rows, 1, 8)[0] == [2]  # 1.75 tokens in 1.3 steps; 1.5 in 1.15; 1.875 in 1.45
    assert best(fresh, lambda rows: 0.51 * rows, 1, 8) == ([0], 0)
    assert best(fresh, free, 1, 2)[0] == [2]
    assert best(fresh, lambda rows: 0.2 * rows, 3, 8) == ([0], 0)  # three sequences pay for each row
    assert best([], free, 1, 8) == ([], 0)


def test_what_any_guess_costs_is_borne_by_all_together() -> None:
    one = [0.9, 0.8]
    assert best([one], dear, 4, 8) == ([0], 0)
    assert best([one] * 4, dear, 4, 8)[0] == [2] * 4


def test_each_sequence_gets_what_its_own_guesses_are_worth() -> None:
    chances = [[0.95, 0.9, 0.86], [], [0.3, 0.1]]
    assert best(chances, lambda rows: 0.1 + 0.05 * rows, 3, 8)[0] == [3, 0, 1]
    assert best(chances, lambda rows: 0.1 + 0.05 * rows, 3, 2)[0] == [2, 0, 0]  # with less room the likeliest


def test_one_answer_is_not_halved_to_make_another_a_bit_faster() -> None:
    chances = [[1.0] * 7, []]
    assert best(chances, lambda rows: 0.15 * rows, 2, 8)[0] == [5, 0]  # seven would bring most tokens a step
    assert best(chances, lambda rows: 0.6 * rows, 2, 8)[0] == [0, 0]  # and so they would here

"""How many guesses pay: cheap rows and good guesses long drafts, dear rows or bad guesses none."""

from __future__ import annotations

import pytest

from model_svc.spec.worth import Acceptance, RowPrices


def test_the_last_guess_comes_true_as_often_as_it_costs() -> None:
    fresh = Acceptance()
    assert fresh.rate(0) == pytest.approx(0.5)
    assert fresh.length(0, 0.25, 8) == 2
    assert fresh.length(0, 0.5001, 8) == fresh.length(0, 1.2, 8) == 0
    assert fresh.length(0, 0.0, 8) == 8
    assert fresh.length(0, 0.1, 0) == 0


def test_a_longer_match_makes_longer_drafts() -> None:
    lengths = [Acceptance().length(matched, 0.25, 16) for matched in range(1, 9)]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[1], lengths[-1]) == (0, 1, 6)


def test_wrong_guesses_end_drafts_and_right_ones_lengthen_them() -> None:
    bad, good = Acceptance(), Acceptance()
    for _ in range(12):
        bad.note(0, 4, 2)
        good.note(4, 4, 2)
    assert bad.length(2, 0.25, 8) == 0
    assert good.length(2, 0.25, 8) == 8
    for _ in range(200):  # and no luck is for ever
        good.note(0, 4, 2)
        bad.note(4, 4, 2)
    assert good.length(2, 0.25, 8) == 0 and bad.length(2, 0.25, 8) == 8


def test_what_lies_behind_a_miss_says_nothing() -> None:
    short, long = Acceptance(), Acceptance()
    short.note(1, 2, 4)
    long.note(1, 9, 4)
    assert short.rate(4) == long.rate(4)


def test_a_row_is_priced_by_what_it_adds_to_a_step() -> None:
    prices = RowPrices()
    prices.observe(4.0, 1, 0)
    prices.observe(7.0, 1, 3)
    assert prices.price(1) == pytest.approx(0.25)
    prices.observe(10.0, 8, 0)
    assert prices.price(8) == pytest.approx(0.8)  # the same row beside eight sequences


def _lucky() -> Acceptance:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.note(8, 8, 8)
    return acceptance


def test_many_sequences_have_no_use_for_rows_that_cost_as_much_as_a_token() -> None:
    prices = RowPrices()
    assert _lucky().length(8, prices.price(2), 8) > 0  # it has to be found out
    assert _lucky().length(8, prices.price(3), 8) == 0
    for _ in range(20):
        prices.observe(16.0, 16, 0)
        prices.observe(20.0, 16, 4)
    assert _lucky().length(8, prices.price(16), 8) == 0


def test_a_step_that_the_machine_held_up_counts_little() -> None:
    prices = RowPrices()
    prices.observe(4.0, 1, 0)
    prices.observe(5.0, 1, 1)
    prices.observe(4000.0, 1, 0)
    assert prices.price(1) > 0.2

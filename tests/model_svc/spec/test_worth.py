"""How many guesses pay: cheap rows and good guesses long drafts, dear rows or bad guesses none."""

from __future__ import annotations

import pytest

from model_svc.spec.worth import Acceptance, RowPrices, draft_length


def test_the_last_guess_comes_true_as_often_as_it_costs() -> None:
    assert draft_length(0.5, 0.25, 8) == 2
    assert draft_length(0.9, 0.25, 8) == 8
    assert draft_length(0.9, 0.25, 64) == 13
    assert draft_length(0.5, 0.5, 8) == draft_length(0.2, 0.25, 8) == draft_length(1.0, 1.2, 8) == 0
    assert draft_length(1.0, 0.0, 8) == 8
    assert draft_length(0.0, 0.0, 8) == 0
    assert draft_length(0.9, 0.1, 0) == 0


def test_wrong_guesses_end_drafts_and_right_ones_lengthen_them() -> None:
    bad, good = Acceptance(), Acceptance()
    for _ in range(12):
        bad.note(0, 4)
        good.note(4, 4)
    assert draft_length(bad.rate, 0.25, 8) == 0
    assert draft_length(good.rate, 0.25, 8) == 8


def test_what_lies_behind_a_miss_says_nothing() -> None:
    short, long = Acceptance(), Acceptance()
    short.note(1, 2)
    long.note(1, 9)
    assert short.rate == long.rate


def test_a_row_is_priced_by_what_it_adds_to_a_step() -> None:
    prices = RowPrices()
    prices.observe(4.0, 1, 0)
    prices.observe(7.0, 1, 3)
    assert prices.price(1) == pytest.approx(0.25)
    prices.observe(10.0, 8, 0)
    assert prices.price(8) == pytest.approx(0.8)  # the same row beside eight sequences


def test_many_sequences_have_no_use_for_rows_that_cost_as_much_as_a_token() -> None:
    prices = RowPrices()
    assert draft_length(0.99, prices.price(8), 8) == 0  # before anything was measured, too
    for _ in range(20):
        prices.observe(16.0, 16, 0)
        prices.observe(20.0, 16, 4)
    assert draft_length(0.99, prices.price(16), 8) == 0


def test_a_step_that_the_machine_held_up_counts_little() -> None:
    prices = RowPrices()
    prices.observe(4.0, 1, 0)
    prices.observe(5.0, 1, 1)
    prices.observe(4000.0, 1, 0)
    assert prices.price(1) > 0.2

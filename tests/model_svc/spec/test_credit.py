"""Useless guesses end when the credit does, and right ones pay for themselves."""

from __future__ import annotations

from model_svc.spec.credit import Credit


def test_useless_guesses_cost_a_few_steps_and_then_half_a_percent() -> None:
    credit = Credit()
    lost = 0.0
    for _ in range(10_000):
        if credit.spent:
            credit.plain_step()
        else:
            credit.charge(0.25)
            lost += 0.25
    assert 0.004 * 10_000 < lost < 3 + 0.005 * 10_000


def test_right_guesses_pay_for_themselves() -> None:
    credit = Credit()
    for _ in range(10_000):
        credit.charge(0.5)
        credit.came_true(7, 8)
        assert not credit.spent
    for _ in range(100):  # what was earned is no licence to lose it all
        credit.charge(0.5)
    assert credit.spent


def test_a_step_that_the_machine_held_up_does_not_end_guessing_for_long() -> None:
    credit = Credit()
    credit.charge(1000.0)
    credit.came_true(4, 1)
    assert not credit.spent
    credit.charge(-5.0)  # a step that happened to be short is no gain
    assert credit.left <= 2

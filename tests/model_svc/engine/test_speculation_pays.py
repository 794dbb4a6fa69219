"""What guesses gain and lose on two kinds of machines, in simulated time: the real policy, steps as long as measured.

Gains are those of the answers' rates: 1 is what they have without guesses.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model_svc.engine.drafter import Drafter
from model_svc.engine.plan import SequenceStep, StepPlan
from tests.model_svc.engine.timed_runner import Cost, Partly, cpu, h200, rates

MACHINES: dict[str, tuple[Cost, int, float]] = {"gpu": (h200, 1, 0.5), "cpu": (cpu, 0, 0.0)}
ALWAYS = 101  # of a hundred


def gains(machine: str, num_sequences: int, right: Callable[[int], int], **options: bool) -> list[float]:
    """Return each answer's rate with guesses of which so many come true."""
    cost, depth, host_ms = MACHINES[machine]
    drafter = Drafter(Partly(right), max_length=7, max_drafts=64, **options)
    return rates(cost, num_sequences, drafter, depth=depth, host_ms=host_ms)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("machine", "num_sequences", "least"),
    [("gpu", 1, 6), ("gpu", 4, 5.4), ("gpu", 8, 4.6), ("gpu", 32, 1.7), ("gpu", 64, 1.15), ("cpu", 1, 3.8),
     ("cpu", 4, 1.9), ("cpu", 16, 1.08)],
)  # fmt: skip
def test_right_guesses_gain_nearly_what_the_machine_can_give(machine: str, num_sequences: int, least: float) -> None:
    gained = gains(machine, num_sequences, lambda _: ALWAYS)
    assert mean(gained) > least
    assert max(gained) < 1.1 * min(gained)


@pytest.mark.parametrize("right", [0, 20, 50])
@pytest.mark.parametrize(
    ("machine", "num_sequences"), [("gpu", 1), ("gpu", 8), ("gpu", 32), ("cpu", 1), ("cpu", 8), ("cpu", 32)]
)
def test_bad_guesses_lose_next_to_nothing(machine: str, num_sequences: int, right: int) -> None:
    assert mean(gains(machine, num_sequences, lambda _: right)) > 0.98


@pytest.mark.parametrize(("machine", "least"), [("gpu", 1.35), ("cpu", 1.3)])
def test_guesses_of_which_half_come_true_pay_at_one_sequence(machine: str, least: float) -> None:
    assert mean(gains(machine, 1, lambda _: 50)) > least


@pytest.mark.parametrize(("machine", "num_sequences"), [("gpu", 8), ("gpu", 32), ("cpu", 4)])
def test_only_those_are_guessed_for_whose_guesses_come_true(machine: str, num_sequences: int) -> None:
    gained = gains(machine, num_sequences, lambda first: ALWAYS if first % 2 else 0)
    assert mean(gained[1::2]) > 2.2
    assert mean(gained[::2]) > 0.6  # their steps are longer, too
    assert mean(gained) > 1.5


def test_one_of_many_does_not_hold_up_all() -> None:
    assert mean(gains("gpu", 32, lambda first: 0 if first else ALWAYS)) > 0.98


def test_a_step_beside_guesses_is_no_measure_of_plain_ones() -> None:
    drafter = Drafter(Partly(lambda _: ALWAYS), max_length=7, max_drafts=64)
    drafter.overlaps = True  # else there is nothing to hide the host's part behind
    plain = StepPlan(step=0, sequences=(SequenceStep(slot=0, start=0, num_tokens=1),))
    check = StepPlan(step=1, sequences=(SequenceStep(slot=0, start=0, num_tokens=4, num_drafts=3),))
    for _ in range(3):
        drafter.observe(plain, 4.0)
    for _ in range(50):
        drafter.observe(check, 5.0)
        drafter.observe(plain, 4.6)
    assert drafter.times.plain_ms(1) == 4.0
    drafter.observe(plain, 5.0)
    assert drafter.times.plain_ms(1) > 4.0


def test_a_machine_that_was_slow_for_a_while_is_tried_again() -> None:
    slow = [True]

    def cost(num_sequences: int, num_guesses: int) -> float:
        return h200(num_sequences, num_guesses) + (8.0 if num_guesses and slow[0] else 0.0)

    drafter = Drafter(Partly(lambda _: ALWAYS), max_length=7, max_drafts=64)
    assert mean(rates(cost, 8, drafter, depth=1, host_ms=0.5)) > 0.97
    slow[0] = False
    rates(cost, 8, drafter, depth=1, host_ms=0.5)
    assert mean(rates(cost, 8, drafter, depth=1, host_ms=0.5)) > 4.5

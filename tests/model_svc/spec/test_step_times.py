"""What checking guesses costs is what it was measured to cost, and what was measured once is asked again."""

from __future__ import annotations

import pytest

from model_svc.spec.step_times import StepTimes


def times_of(**plain: float) -> StepTimes:
    """Times with plain steps of so many sequences known: s8=4.0."""
    times = StepTimes()
    for name, ms in plain.items():
        for _ in range(3):
            times.note_plain(int(name[1:]), ms)
    return times


def test_nothing_is_judged_before_a_plain_step_was_seen() -> None:
    times = StepTimes()
    assert times.plain_ms(4) == 0
    for ms in (90.0, 10.0, 11.0):  # the first step of a kind compiles, records, loads
        assert times.wants_plain(4)
        times.note_plain(4, ms)
    assert not times.wants_plain(4) and times.plain_ms(4) == 10.0
    assert times.wants_plain(5)


def test_a_first_step_may_find_out_with_few_guesses() -> None:
    times = times_of(s1=4.0, s32=4.0)
    assert (times.reach(1), times.reach(32)) == (4, 32)
    assert 0 < times.extra(1)(1) < times.extra(1)(4) < 1
    assert times.extra(32)(32) == pytest.approx(times.extra(1)(1))
    assert times.extra(1)(1) < 0.5


def test_each_measurement_allows_twice_as_many() -> None:
    times = times_of(s1=4.0)
    for reach in (4, 8, 16, 32):
        assert times.reach(1) == reach
        times.note_check(1, reach, 5.0)


def test_the_cost_lies_on_the_line_between_measurements() -> None:
    times = times_of(s8=4.0)
    times.note_check(8, 4, 5.0)
    extra = times.extra(8)
    assert [extra(rows) for rows in (1, 4, 8)] == pytest.approx([0.15625, 0.25, 0.375])
    times.note_check(8, 32, 6.4)
    extra = times.extra(8)
    assert [extra(rows) for rows in (4, 18, 32, 46)] == pytest.approx([0.25, 0.425, 0.6, 0.775])


def test_other_numbers_of_sequences_are_taken_for_the_nearest_that_was_measured() -> None:
    times = times_of(s1=10.0, s8=10.0, s64=10.0)
    times.note_check(8, 8, 12.0)
    assert times.extra(64)(8) == pytest.approx(0.2)
    assert times.reach(64) == 64
    times.note_check(64, 8, 18.0)
    assert times.extra(64)(8) == pytest.approx(0.8)
    assert times.extra(8)(8) == pytest.approx(0.2)


def test_a_plain_time_grows_old_while_guesses_are_checked() -> None:
    times = StepTimes()
    for _ in range(3):
        times.note_plain(1, 4.0, rough=True)
    for _ in range(32):
        assert not times.wants_plain(1)
        times.note_check(1, 7, 5.0)
    assert times.wants_plain(1)  # a rough one sooner
    for _ in range(3):
        times.note_plain(1, 5.0)
    assert times.plain_ms(1) == 5.0  # and it counts no longer
    times.note_plain(1, 9.0, rough=True)
    assert times.plain_ms(1) == 5.0
    for _ in range(512):
        assert not times.wants_plain(1)
        times.note_check(1, 7, 5.0)
    assert times.wants_plain(1)


def test_a_price_in_doubt_is_measured_anew() -> None:
    times = times_of(s8=4.0)
    for _ in range(50):
        times.note_check(8, 8, 8.0)
    assert times.extra(8)(8) == pytest.approx(1.0)
    times.fade(8)
    assert times.extra(8)(8) == pytest.approx(0.5)
    times.note_check(8, 8, 4.4)
    assert times.extra(8)(8) == pytest.approx(0.1)


def test_a_first_impression_is_soon_put_to_the_test() -> None:
    times = times_of(s8=4.0)
    for count in range(3):
        times.note_check(8, 8, 400.0 if not count else 5.0)
        assert times.hasty(8) == (not count)
        if not count:
            times.fade(8)
            assert times.extra(8)(8) == 0
    assert times.extra(8)(8) == pytest.approx(0.25)


def test_a_step_that_the_machine_held_up_counts_little() -> None:
    times = StepTimes()
    for _ in range(20):
        times.note_plain(1, 4.0)
        times.note_check(1, 4, 5.0)
    times.note_plain(1, 4000.0)
    times.note_check(1, 4, 4000.0)
    assert times.plain_ms(1) < 5
    assert times.extra(1)(4) < 0.35

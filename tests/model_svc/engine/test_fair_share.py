"""Tenants share an engine by tokens: long jobs of one do not starve another, and nobody saves up a right to starve."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_svc.engine.fair_share import FairShare
from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import hashed_reply


def order_of_first_tokens(driver: Driver) -> list[str]:
    driver.run()
    return list(dict.fromkeys(chunk.request_id for chunk in driver.chunks if chunk.token_ids))


def crowd(policy: str, **sizes: Any) -> list[str]:
    """Six long jobs of one tenant, then one short job each of two others."""
    driver = Driver(hashed_reply(256), policy=policy, max_num_seqs=1, **sizes)
    for number in range(6):
        driver.ask(f"long{number}", [number] * 40, tenant="heavy", max_tokens=4)
    driver.ask("light", [7], tenant="light", max_tokens=4)
    driver.ask("other", [8, 9], tenant="other", max_tokens=4)
    return order_of_first_tokens(driver)


def test_a_tenant_with_long_jobs_does_not_starve_the_others() -> None:
    assert crowd("fcfs")[-2:] == ["light", "other"]
    fair = crowd("fair")
    assert fair[:3] == ["long0", "light", "other"]
    assert fair[3:] == [f"long{number}" for number in range(1, 6)]


def test_one_tenant_alone_is_served_in_the_order_of_arrival() -> None:
    driver = Driver(hashed_reply(256), policy="fair", max_num_seqs=1)
    names = [f"r{number}" for number in range(8)]
    for number, name in enumerate(names):
        driver.ask(name, [1] * (1 + 7 * number % 23))
    assert order_of_first_tokens(driver) == names


def test_answers_count_too_and_priority_comes_before_shares() -> None:
    driver = Driver(hashed_reply(256), policy="fair", max_num_seqs=1)
    driver.ask("a1", [1], tenant="a", max_tokens=60, ignore_eos=True)
    driver.run()
    driver.ask("a2", [1], tenant="a")
    driver.ask("b1", [1] * 30, tenant="b")
    driver.ask("a3", [1], tenant="a", priority=-1)
    driver.chunks.clear()
    assert order_of_first_tokens(driver) == ["a3", "b1", "a2"]


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    shares = FairShare()
    for _ in range(10):
        shares.start(shares.mark("busy", 100))
    assert shares.mark("back", 50) == 900
    assert shares.mark("back", 50) == 950


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=60, max_size=200))
def test_backlogged_tenants_get_equal_shares_to_within_one_job(jobs: list[tuple[str, int]]) -> None:
    shares = FairShare()
    queue = sorted((shares.mark(tenant, size), number, tenant, size) for number, (tenant, size) in enumerate(jobs))
    left = {tenant: sum(size for name, size in jobs if name == tenant) for tenant in "abc"}
    served = dict.fromkeys("abc", 0)
    for mark, _, tenant, size in queue:
        if min(left.values()) == 0:
            break  # somebody has nothing waiting any more
        shares.start(mark)
        served[tenant] += size
        left[tenant] -= size
        assert max(served.values()) - min(served.values()) <= 100


@pytest.mark.parametrize("num_tenants", [5])
def test_tenants_whose_work_is_over_are_forgotten(num_tenants: int) -> None:
    shares = FairShare()
    for number in range(num_tenants):
        shares.mark(f"t{number}", 10)
    shares.start(shares.mark("long", 1000))
    shares.start(shares.mark("long", 1))
    assert list(shares._ends) == ["long"]

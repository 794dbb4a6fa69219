"""States of sequences in the engine: what took in tokens that became void is of no more use, and nobody hits it.

The scripted runner refuses a step that begins with a state of other tokens than those before it.
"""

from __future__ import annotations

import pytest

from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import hashed_reply
from wire.messages import ReasoningPlan

CLOSE = (3, 9)
HASHED = hashed_reply(200)


def driver(depth: int) -> Driver:
    """Return an engine whose draws hang on tokens alone, not on a request's name."""
    return Driver(
        lambda context, index, _: HASHED(context, index, 0), depth=depth, block_size=1, state_bytes=1, num_snapshots=40
    )


def thinking(budget: int) -> ReasoningPlan:
    return ReasoningPlan(budget=budget, starts_open=True, open_tag=b"\xf0", close_tag=b"\xf1", close_ids=CLOSE)


def answered(asked: Driver, name: str, prompt: list[int], budget: int = 3) -> list[int]:
    asked.ask(name, prompt, max_tokens=12, reasoning=thinking(budget))
    asked.run()
    return asked.ids(name)


@pytest.mark.parametrize("depth", [1, 2])
def test_thinking_that_is_closed_while_draws_are_in_flight_goes_on_from_a_snapshot_before_them(depth: int) -> None:
    prompt = list(range(20, 29))
    asked = driver(depth)
    ids = answered(asked, "late", prompt)
    assert ids == answered(driver(0), "at once", prompt)
    assert ids[3:5] == list(CLOSE)
    assert asked.preemptions() == ({"void_state": 1} if depth > 1 else {})


def test_a_snapshot_of_a_step_that_became_void_is_nobodys() -> None:
    prompt = list(range(20, 29))
    asked = driver(2)
    ids = answered(asked, "first", prompt)
    for end in range(1, len(ids) + 1):
        again = [*prompt, *ids[:end], 77]
        assert answered(asked, f"hit {end}", again) == answered(driver(0), f"new {end}", again)

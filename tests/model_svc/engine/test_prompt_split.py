"""How prompts share a step: by rank, the first always moves, short ones pass, nothing is left over."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from model_svc.engine.prompt_split import floor, split


@pytest.mark.parametrize(
    ("budget", "ranks", "rests", "shares"),
    [
        (100, [0], [40], [40]),
        (100, [0], [400], [100]),
        (100, [0, 0, 0], [30, 30, 30], [30, 30, 30]),
        (100, [0, 0, 0], [60, 60, 60], [60, 40, 0]),  # of one length: one after another
        (100, [0, 0], [9000, 20], [80, 20]),
        (100, [0, 0, 0], [9000, 9000, 20], [80, 0, 20]),
        (100, [0, 0, 0], [9000, 45, 20], [50, 30, 20]),
        (100, [-1, 0], [400, 3], [100, 0]),  # rank before length
        (100, [-1, 0, 0], [40, 9000, 3], [40, 57, 3]),
        (1, [0, 0], [9, 2], [1, 0]),
        (0, [0, 0], [9, 2], [0, 0]),
        (100, [], [], []),
    ],
)
def test_prompts_share_a_step(budget: int, ranks: list[int], rests: list[int], shares: list[int]) -> None:
    assert split(budget, ranks, rests) == shares


@given(st.integers(0, 600), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 500)), max_size=12))
def test_nothing_is_left_over_and_the_first_gets_half(budget: int, prompts: list[tuple[int, int]]) -> None:
    ranks = sorted(rank for rank, _ in prompts)
    rests = [rest for _, rest in prompts]
    shares = split(budget, ranks, rests)
    assert sum(shares) == min(budget, sum(rests))
    assert all(0 <= share <= rest for share, rest in zip(shares, rests, strict=True))
    if shares:
        assert shares[0] >= min(rests[0], floor(budget))
    for rank in set(ranks):
        behind = [share for share, its in zip(shares, ranks, strict=True) if its > rank]
        unfinished = any(s < r for s, r, its in zip(shares, rests, ranks, strict=True) if its == rank)
        assert not (unfinished and any(behind)), "a lower rank got what a higher one wanted"

"""Replicas that compute prompts and replicas that answer: each does the other's work rather than leave it undone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.balancer.test_sources import fleet, status

P, D = status("p", role="prefill"), status("d", role="decode")
E = status("e", role="decode", num_running=2)


def chosen(found: Any) -> str | None:
    return found.replica_id if found is not None else None


def test_a_long_prompt_goes_to_a_prefill_replica_first_and_then_to_one_that_decodes() -> None:
    made = fleet(P, D, E)
    assert chosen(made.place_prefill(1000, {}, 0.0)) == "p"
    then = made.place(1000, {"p": 992}, 0.0)
    assert then is not None and then.source is not None
    assert (then.replica_id, then.source.replica_id, then.source.num_tokens) == ("d", "p", 992)


@pytest.mark.parametrize(
    ("statuses", "num_tokens", "cached"),
    [
        ((P, D), 50, {}),
        ((P, D), 1000, {"d": 960}),
        ((P,), 1000, {}),
        ((D,), 1000, {}),
        ((status("p"), D), 1000, {}),
        ((status("p", role="prefill", kv_layout="other"), D), 1000, {}),
        ((status("p", role="prefill", max_model_len=100), D), 1000, {}),
    ],
    ids=["short", "known", "nobody to answer", "nobody to prefill", "both", "other layout", "no room"],
)
def test_a_prompt_passes_by_the_prefill_replicas_where_they_would_not_help(
    statuses: tuple[Any, ...], num_tokens: int, cached: dict[str, int]
) -> None:
    made = fleet(*statuses)
    assert made.place_prefill(num_tokens, cached, 0.0) is None
    assert made.place(num_tokens, cached, 0.0) is not None


def test_prefill_replicas_answer_when_no_other_lives() -> None:
    made = fleet(P, D)
    assert {chosen(made.place(100, {}, 0.0)) for _ in range(4)} == {"d"}
    made.lost(100.0)
    made.hear(P, 100.0)
    assert chosen(made.place(100, {}, 100.0)) == "p"

"""The formulas of a benchmark report, against numbers worked out by hand."""

import pytest

from loadtest.client import Sample
from loadtest.report import as_table, percentile, summarize


def test_percentiles_interpolate() -> None:
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([1, 2, 3], 100) == 3
    assert percentile([], 50) == 0


def test_tpot_leaves_the_first_token_out() -> None:
    assert Sample(start_s=0, ttft_s=1.0, e2el_s=3.0, output_tokens=5).tpot_s == pytest.approx(0.5)
    assert Sample(start_s=0, ttft_s=1.0, e2el_s=1.0, output_tokens=1).tpot_s == 0


def test_failures_are_their_own_row() -> None:
    good = Sample(start_s=0, ttft_s=0.1, e2el_s=1.1, gaps_s=[0.1, 0.3], prompt_tokens=7, output_tokens=11)
    figures = summarize([good, Sample(start_s=0, error="HTTP 500")], duration_s=2.0, goodput={"ttft": 200.0})
    assert (figures["completed"], figures["failed"], figures["errors"]) == (1, 1, ["HTTP 500"])
    assert figures["output_throughput"] == 5.5
    assert figures["median_itl_ms"] == pytest.approx(200)
    assert figures["request_goodput"] == 0.5
    assert "failed" in as_table(figures)

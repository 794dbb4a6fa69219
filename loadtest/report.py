"""Figures of a run, under the names that vLLM's `bench serve` prints, so that results can be laid side by side.

TPOT = (E2EL - TTFT) / (output tokens - 1) for each request; ITL = every gap between text chunks, pooled. Failed
requests are a row of their own and take part in no other figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from loadtest.client import Sample

PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], p: float) -> float:
    """Return the p-th percentile by linear interpolation; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = (len(ordered) - 1) * p / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    ms = [1000 * value for value in values]
    row = {f"mean_{name}_ms": statistics.fmean(ms) if ms else 0.0, f"median_{name}_ms": percentile(ms, 50)}
    row[f"std_{name}_ms"] = statistics.pstdev(ms) if ms else 0.0
    return row | {f"p{p}_{name}_ms": percentile(ms, p) for p in PERCENTILES}


def summarize(samples: Sequence[Sample], duration_s: float, goodput: dict[str, float] | None = None) -> dict[str, Any]:
    """Return all figures of a run. `goodput` maps ttft, tpot, e2el to limits in ms that a good request keeps."""
    good = [sample for sample in samples if sample.error is None]
    output, prompt = sum(s.output_tokens for s in good), sum(s.prompt_tokens for s in good)
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(samples) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "cached_input_tokens": sum(s.cached_tokens for s in good),
        "request_throughput": len(good) / duration_s,
        "output_throughput": output / duration_s,
        "total_token_throughput": (output + prompt) / duration_s,
    }
    if goodput:
        within = [s for s in good if all(1000 * getattr(s, f"{key}_s") <= limit for key, limit in goodput.items())]
        figures["request_goodput"] = len(within) / duration_s
    figures |= _spread("ttft", [s.ttft_s for s in good])
    figures |= _spread("tpot", [s.tpot_s for s in good if s.output_tokens > 1])
    figures |= _spread("itl", [gap for s in good for gap in s.gaps_s])
    figures |= _spread("e2el", [s.e2el_s for s in good])
    figures["errors"] = sorted({s.error for s in samples if s.error is not None})[:5]
    return figures


def as_table(figures: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    width = max(map(len, figures))
    lines = []
    for name, value in figures.items():
        text = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        lines.append(f"{name:<{width}}  {text}")
    return "\n".join(lines)

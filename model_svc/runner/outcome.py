"""What the host makes of a step that is done: tokens as far as guesses came true, log-probabilities, failed slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_svc.engine.plan import SampledToken, SequenceStep, StepOutput
from model_svc.runner.draws import guesses
from model_svc.runner.sampler import TopLogprobs
from model_svc.runner.target_logprobs import Found, target_logprobs


def step_output(
    step: int, items: Sequence[SequenceStep], ids: Sequence[int], finite: Sequence[bool], top: TopLogprobs | None,
    *, bad_slots: frozenset[int], compute_ms: float, scored: Found,
) -> StepOutput:  # fmt: skip
    """Return the output of step number `step`; the device must have come so far.

    `items` are the shares that sample; `ids` and `finite` (whether it came of finite logits) are those of all their
    draws, in order. A slot with a draw that is not finite fails, as do the `bad_slots` of the step.
    """
    tokens: list[SampledToken] = []
    failed = set(bad_slots)
    tops = _top_fields(top) if top is not None else {}
    at = 0
    for item in items:
        drawn = _drawn(item, at, ids, finite, tops)
        at += 1 + item.num_drafts
        if drawn is None:
            failed.add(item.slot)
        elif item.slot not in failed:
            tokens += drawn
    return StepOutput(
        step=step,
        tokens=tuple(tokens),
        failed_slots=tuple(sorted(failed)),
        compute_ms=compute_ms,
        targets=target_logprobs(scored),
    )


def _drawn(
    item: SequenceStep, at: int, ids: Sequence[int], finite: Sequence[bool], tops: Mapping[int, dict[str, Any]]
) -> list[SampledToken] | None:
    """Return the tokens that hold of a share whose draws begin at `at`; None if one came of logits not finite."""
    if not item.num_drafts and not tops:  # nearly all of 256 a step
        return [SampledToken(slot=item.slot, token_id=ids[at])] if finite[at] else None
    expected = guesses(item).tolist() if item.num_drafts else []
    tokens: list[SampledToken] = []
    for row in range(at, at + 1 + item.num_drafts):
        if not finite[row]:
            return None
        tokens.append(SampledToken(slot=item.slot, token_id=ids[row], **tops.get(row, {})))
        if row - at >= len(expected) or ids[row] != expected[row - at]:
            break
    return tokens


def _top_fields(top: TopLogprobs) -> dict[int, dict[str, Any]]:
    """Return the log-probability fields of SampledToken for the draws that asked, by draw."""
    parts = (top.counts, top.chosen.tolist(), top.ids.tolist(), top.values.tolist())
    return {
        row: {"logprob": chosen, "top_ids": tuple(ids[:n]), "top_logprobs": tuple(values[:n])}
        for row, n, chosen, ids, values in zip(top.rows, *parts, strict=True)
    }

"""What goes out of a sequence: chunks of new tokens and their phases, with the account in the first and the last."""

from __future__ import annotations

from model_svc.engine.phase_runs import phase_marks
from model_svc.engine.sequence import Sequence
from wire.messages import ANSWER, MARKUP, PhaseMark, TokenChunk


def next_token(seq: Sequence, token_id: int, energy_j: float | None = None) -> TokenChunk:
    """Return the chunk of one more token in the middle of a plain answer: all that is said of most tokens."""
    index, seq.num_emitted = seq.num_emitted, seq.num_output_tokens
    return TokenChunk(
        request_id=seq.request_id,
        attempt=seq.attempt,
        index=index,
        choice=seq.choice,
        token_ids=(token_id,),
        num_accepted_drafts=seq.num_accepted_drafts,
        num_rejected_drafts=seq.num_rejected_drafts,
        energy_j=energy_j,
    )


def chunk_of(seq: Sequence, now: float, energy_j: float | None = None) -> TokenChunk:
    """Return what was decided since the last chunk."""
    index = seq.num_emitted
    ended = seq.finish_reason is not None
    tracker = seq.reasoning
    begin = seq.num_prompt_tokens + index
    if seq.started_output and not ended and not seq.logprobs and seq.closed_at < 0:
        brief = _brief(seq, index, begin, energy_j)
        if brief is not None:
            return brief
    num_new, phase = seq.num_output_tokens - index, ANSWER
    marks: tuple[PhaseMark, ...] = ()
    if tracker is not None:
        decided = tracker.take()[seq.num_replayed :]
        seq.num_replayed = 0  # the rest of what an earlier attempt has sent
        num_new = len(decided)
        phase, marks = phase_marks(decided)
    first = not seq.started_output
    seq.started_output = True
    seq.num_emitted = index + num_new
    logprobs = tuple(seq.logprobs[:num_new])
    del seq.logprobs[:num_new]
    turned = ended or bool(marks) or phase == MARKUP
    closed_at, seq.closed_at = seq.closed_at, -1
    scores = seq.prompt_scores
    return TokenChunk(
        request_id=seq.request_id,
        attempt=seq.attempt,
        index=index,
        choice=seq.choice,
        token_ids=tuple(seq.token_ids[begin : begin + num_new]),
        phase=phase,
        marks=marks,
        logprobs=logprobs,
        finish_reason=seq.finish_reason,
        stop_token=seq.stop_token,
        num_cached_tokens=max(0, seq.num_cached_tokens) if first else 0,
        num_prompt_tokens=seq.num_prompt_tokens if first else 0,
        num_reasoning_tokens=tracker.num_tokens if tracker is not None else 0,
        reasoning_ended_by=tracker.ended_by if tracker is not None and turned else None,
        closed_at=closed_at,
        num_accepted_drafts=seq.num_accepted_drafts,
        num_rejected_drafts=seq.num_rejected_drafts,
        prompt_logprobs=tuple(scores.entries) if first and scores is not None and scores.complete else (),
        timings_ms=_timings(seq, now) if first or ended else {},
        energy_j=energy_j,
        stuck=seq.stuck,
    )


def _brief(seq: Sequence, index: int, begin: int, energy_j: float | None) -> TokenChunk | None:
    """Return a chunk from the middle of an answer or of its thinking, where nothing turns; None if something does."""
    tracker, num_new, phase = seq.reasoning, seq.num_output_tokens - index, ANSWER
    if tracker is not None:
        taken = tracker.take_plain() if not seq.num_replayed else None
        if taken is None:
            return None
        num_new, phase = taken
    seq.num_emitted = index + num_new
    return TokenChunk(
        request_id=seq.request_id,
        attempt=seq.attempt,
        index=index,
        choice=seq.choice,
        token_ids=tuple(seq.token_ids[begin : begin + num_new]),
        phase=phase,
        num_reasoning_tokens=tracker.num_tokens if tracker is not None else 0,
        num_accepted_drafts=seq.num_accepted_drafts,
        num_rejected_drafts=seq.num_rejected_drafts,
        energy_j=energy_j,
    )


def _timings(seq: Sequence, now: float) -> dict[str, float]:
    """Return queue, prefill and decode time so far, in ms; a phase that was not reached is left out."""
    queued_until = seq.first_scheduled_at or now
    timings = {"queue": queued_until - seq.arrived_at}
    if seq.first_scheduled_at:
        prefilled = seq.first_token_at or now
        timings["prefill"] = prefilled - seq.first_scheduled_at
    if seq.first_token_at:
        timings["decode"] = now - seq.first_token_at
    return {name: round(seconds * 1000, 3) for name, seconds in timings.items()}

"""Bring a sequence to the state that its checkpoint implies: what an earlier attempt generated is read once more.

Grammar, thinking budget and stop rule are functions of the token ids, so reading the ids restores all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress

from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.sequence import Sequence
from wire.grammar import GrammarError

OnDraw = Callable[[int], object]
ForceClose = Callable[[Sequence, str], object]


def replay(seq: Sequence, force_close: ForceClose) -> str | None:
    """Read the generated tokens of a new sequence; return its finish reason if they have ended it already.

    `force_close(seq, ended_by)` ends thinking where the checkpoint stops short of a close that is due.
    """
    output, stop = seq.output_ids, seq.stop
    reason = None
    if output and stop.is_stop(output[-1], len(output)):
        reason, seq.stop_token = "stop", True
    elif len(output) >= stop.max_tokens:
        reason = "length"
    drawn = output[:-1] if seq.stop_token else output
    on_draw = _grammar_reader(seq, drawn)
    if seq.reasoning is not None:
        _restore_thinking(seq, seq.reasoning, drawn, on_draw, force_close)
        if reason is None and seq.num_output_tokens >= stop.max_tokens:
            reason = "length"
    else:
        for token_id in drawn:
            on_draw(token_id)
    if seq.grammar is not None and drawn:
        return "error" if seq.grammar.failed else "stop" if seq.grammar.whole else reason
    return reason


def replay_thinking(
    tracker: ReasoningTracker,
    token_ids: Seq[int],
    max_tokens: int,
    closed_at: Seq[int] = (),
    on_draw: OnDraw = lambda _token_id: None,
) -> tuple[int, ...]:
    """Read what an earlier attempt generated, `closed_at` being where its client ended thinking.

    `on_draw` hears of each token that was not forced, before it is read. Returns the rest of a forced close that the
    checkpoint cut.
    """
    at = 0
    missing: tuple[int, ...] = ()
    end = max(max_tokens, len(token_ids))  # a replica with more room may have generated more than this one may
    while at < len(token_ids):
        by_client = at in closed_at and tracker.is_open
        if by_client or tracker.budget_spent:
            forced = tracker.close_ids[: end - at]
            tracker.force(forced, "client" if by_client else "budget")
        elif put := _put_at_stop(tracker, token_ids, at):
            tracker.land(put, "model")
            at += len(put)
            continue
        else:
            on_draw(token_ids[at])
            landing = tracker.lands(token_ids[at])
            tracker.feed(token_ids[at])
            at += 1
            if landing is None:
                continue
            forced = landing.rest[: end - at]
            tracker.land(forced, landing.ended_by)
        missing = forced[len(token_ids) - at :]
        at += len(forced)
    return missing


def _grammar_reader(seq: Sequence, drawn: list[int]) -> OnDraw:
    """Return what is to hear of each drawn token."""
    if seq.grammar is None:
        return lambda _token_id: None
    if drawn:
        with suppress(GrammarError):  # then it takes nothing
            seq.grammar.wait()
    return seq.grammar.take


def _restore_thinking(
    seq: Sequence, tracker: ReasoningTracker, drawn: list[int], on_draw: OnDraw, force_close: ForceClose
) -> None:
    seq.num_replayed = len(drawn) + seq.stop_token
    closed_at = () if seq.stop_token else seq.request.closed_at.get(seq.choice, ())
    missing = replay_thinking(tracker, drawn, seq.stop.max_tokens, closed_at, on_draw)
    if seq.stop_token:
        tracker.stop_token()
        return
    if missing:
        seq.jump(missing)
    if tracker.budget_spent or seq.ends_thinking:
        force_close(seq, "budget" if tracker.budget_spent else "client")


def _put_at_stop(tracker: ReasoningTracker, token_ids: Seq[int], at: int) -> Seq[int]:
    """Return the ids that took the place of the model's end token here, if these are they: budgets do not bind there.

    The same ids, drawn one by one, mean the same, except where a budget is spent amid them: others follow then.
    """
    put = tracker.stop_closes
    if not put or tracker.lands(token_ids[at]) is not None or tuple(token_ids[at : at + len(put)]) != put:
        return ()
    return put

"""One sequence's share of a step, as the runner is told of it: ids, blocks, guesses, and what may be drawn."""

from __future__ import annotations

from array import array
from typing import Any

from model_svc.engine.draw_rules import NO_DRAFTS, Drafts, rules_of
from model_svc.engine.plan import SequenceStep
from model_svc.engine.sequence import Sequence


def share_of(seq: Sequence, num_tokens: int, drafts: Drafts = NO_DRAFTS) -> SequenceStep:
    """Return the step that computes the next `num_tokens` of a sequence; it draws if these are the last ones known.

    Guesses come behind them, only where no draw is pending. What is sent with it (new blocks, the state of a new slot)
    counts as sent from now on.
    """
    start = seq.num_computed_tokens
    end = start + num_tokens
    pending = seq.num_pending
    sample = end == len(seq.token_ids) + pending
    rules = rules_of(seq) if sample and not seq.free else {}
    sent = seq.num_blocks_sent == len(seq.block_table) and not seq.resync
    if sent and not rules and not drafts.token_ids and seq.prompt_scores is None:  # nearly all of 256 a step
        return SequenceStep(
            slot=seq.slot,
            start=start,
            num_tokens=num_tokens,
            token_ids=b"" if pending else _packed(seq, start, end, ()),
            from_device=pending > 0,
            sample=sample,
            output_index=seq.num_output_tokens + pending,
        )
    more = rules if sent else _unsent(seq) | rules
    if seq.prompt_scores is not None:
        more["targets"] = seq.prompt_scores.targets(seq.token_ids, start, end)
        more["num_top"] = seq.prompt_scores.num_top
    if drafts.token_ids:
        more["num_drafts"] = len(drafts.token_ids)
        more["later_rules"] = drafts.rules
    return SequenceStep(
        slot=seq.slot,
        start=start,
        num_tokens=num_tokens + len(drafts.token_ids),
        # Where draws are pending the runner feeds back what it drew.
        token_ids=b"" if pending else _packed(seq, start, end, drafts.token_ids),
        from_device=pending > 0,
        sample=sample,
        output_index=seq.num_output_tokens + pending,
        **more,
    )


def _packed(seq: Sequence, start: int, end: int, guesses: tuple[int, ...]) -> bytes:
    if end - start == 1 and not guesses:
        return seq.token_ids[start].to_bytes(4, "little")
    return array("i", [*seq.token_ids[start:end], *guesses]).tobytes()


def _unsent(seq: Sequence) -> dict[str, Any]:
    """Return what the runner does not know of this sequence yet."""
    if seq.resync:
        new, blocks = seq.new_in_slot(), tuple(seq.block_table)
        seq.num_blocks_sent = len(blocks)
        seq.resync = False
        return {"new": new, "new_blocks": blocks}
    blocks = tuple(seq.block_table[seq.num_blocks_sent :])
    seq.num_blocks_sent = len(seq.block_table)
    return {"new_blocks": blocks}

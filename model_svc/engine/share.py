"""One sequence's share of a step, as the runner is told of it: ids, blocks, and what may be drawn."""

from __future__ import annotations

from array import array
from typing import Any

from model_svc.engine.plan import SequenceStep
from model_svc.engine.sequence import Sequence


def share_of(seq: Sequence, num_tokens: int) -> SequenceStep:
    """Return the step that computes the next `num_tokens` of a sequence; it draws if these are the last ones known.

    What is sent with it (new blocks, the state of a new slot) counts as sent from now on.
    """
    start = seq.num_computed_tokens
    end = start + num_tokens
    pending = seq.num_pending
    blocks = _unsent(seq)
    sample = end == len(seq.token_ids) + pending
    scores = seq.prompt_scores
    return SequenceStep(
        slot=seq.slot,
        start=start,
        num_tokens=num_tokens,
        token_ids=b"" if pending else _packed(seq, start, end),  # the runner feeds back what it drew
        from_device=pending > 0,
        sample=sample,
        output_index=seq.num_output_tokens + pending,
        targets=scores.targets(seq.token_ids, start, end) if scores is not None else b"",
        num_top=scores.num_top if scores is not None else 0,
        **blocks,
        **(_draw_rules(seq) if sample else {}),
    )


def _packed(seq: Sequence, start: int, end: int) -> bytes:
    if end - start == 1:
        return seq.token_ids[start].to_bytes(4, "little")
    return array("i", seq.token_ids[start:end]).tobytes()


def _unsent(seq: Sequence) -> dict[str, Any]:
    """Return what the runner does not know of this sequence yet."""
    if seq.resync:
        new, blocks = seq.new_in_slot(), tuple(seq.block_table)
        seq.num_blocks_sent = len(blocks)
        seq.resync = False
        return {"new": new, "new_blocks": blocks}
    if seq.num_blocks_sent == len(seq.block_table):
        return {}
    blocks = tuple(seq.block_table[seq.num_blocks_sent :])
    seq.num_blocks_sent = len(seq.block_table)
    return {"new_blocks": blocks}


def _draw_rules(seq: Sequence) -> dict[str, Any]:
    """Return what the draw must keep to; most often nothing."""
    rules: dict[str, Any] = {}
    if seq.reasoning is not None and seq.reasoning.lands_softly:
        rules["landing_id"], rules["landing_bias"] = seq.reasoning.landing(seq.num_pending)
    barred = seq.bad_words.forbidden(seq.token_ids, seq.num_prompt_tokens) if seq.bad_words is not None else ()
    if seq.grammar is None:
        pass
    elif not seq.grammar.governs:
        if seq.reasoning is None or not seq.reasoning.stop_closes:
            barred = (*barred, *seq.stop.own_ids)  # the answer is still to come
    elif seq.num_pending:
        rules["mask_follows"] = True
    else:
        rules["allow_bitmask"] = seq.grammar.allowed() or b""
    if barred:
        rules["barred_ids"] = barred
    return rules

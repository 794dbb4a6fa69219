"""What the next draw of a sequence must keep to, and those behind guesses, as if these had been drawn one by one."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

from model_svc.engine.grammar import AnswerGrammar
from model_svc.engine.plan import DrawRules
from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.sequence import Sequence

_MIN_JUMP = 3  # fewer tokens that need no draw are drawn all the same: a step with a jump is dearer than others


class Drafts(NamedTuple):
    """Guesses to check, and what the draws behind each of them must keep to; empty: nothing for any of them."""

    token_ids: tuple[int, ...] = ()
    rules: tuple[DrawRules, ...] = ()


NO_DRAFTS = Drafts()
_FREE = DrawRules()


def rules_of(seq: Sequence) -> dict[str, Any]:
    """Return what the next draw must keep to; most often nothing."""
    if seq.num_pending and seq.grammar is not None and seq.grammar.governs:
        rules = _rules(seq, seq.reasoning, None, seq.token_ids)
        rules["mask_follows"] = True
        return rules
    return _rules(seq, seq.reasoning, seq.grammar, seq.token_ids)


def jump_of(seq: Sequence, grammar: AnswerGrammar) -> tuple[int, ...]:
    """Return the tokens that the grammar leaves no choice about, if they may go without draws; else none.

    Where log-probabilities are wanted, or other rules may forbid what the grammar demands, each is drawn.
    """
    sampling = seq.request.sampling
    if sampling.logprobs is not None or sampling.allowed_token_ids is not None or seq.bad_words is not None:
        return ()
    forced = tuple(grammar.forced())
    return forced if len(forced) >= _MIN_JUMP and seq.stop.stop_ids.isdisjoint(forced) else ()


def mask_of(seq: Sequence, vocab_size: int) -> bytes:
    """Return the tokens that the next draw may be, now that all before it are known, packed int32 bits; empty: all."""
    rules = _rules(seq, seq.reasoning, seq.grammar, seq.token_ids)
    allowed: bytes = rules.get("allow_bitmask", b"")
    barred: tuple[int, ...] = rules.get("barred_ids", ())
    if not barred:
        return allowed
    bits = bytearray(allowed or b"\xff" * (-(-vocab_size // 32) * 4))  # thinking has begun with the token before
    for token_id in barred:
        bits[token_id >> 3] &= ~(1 << (token_id & 7))
    return bytes(bits)


def leaves_nothing(seq: Sequence, vocab_size: int) -> bool:
    """Tell whether a sequence's own rules forbid every token as the next one."""
    sampling, mask = seq.request.sampling, mask_of(seq, vocab_size)
    allowed = range(vocab_size) if sampling.allowed_token_ids is None else sampling.allowed_token_ids
    barred = seq.stop.stop_ids if seq.num_output_tokens < sampling.min_tokens else ()
    return not any(not mask or mask[token >> 3] >> (token & 7) & 1 for token in allowed if token not in barred)


def foresee(seq: Sequence, guesses: Seq[int]) -> Drafts:
    """Cut guesses where no draw of the same kind would follow, and return them with the rules of the draws behind them.

    A draw does not follow what ends the sequence or its thinking, what the grammar forbids, or where it leaves no
    choice. Budgets and grammars are asked in copies, which read the guesses as if they had been drawn.
    """
    tracker = seq.reasoning.fork() if seq.reasoning is not None else None
    grammar = seq.grammar.fork(tracker) if seq.grammar is not None else None
    token_ids = [*seq.token_ids] if seq.bad_words is not None and seq.bad_words.hang_on_output else []
    num_output = seq.num_output_tokens
    rules: list[DrawRules] = []
    for token_id in guesses:
        num_output += 1
        if token_id in seq.stop.stop_ids or num_output >= seq.stop.max_tokens:
            break
        if grammar is not None and not grammar.take(token_id):
            break
        if tracker is not None and _ends_thinking(seq, tracker, token_id, num_output):
            break
        if grammar is not None and _turns(seq, grammar):
            break
        token_ids.append(token_id)
        rules.append(DrawRules(**_rules(seq, tracker, grammar, token_ids)))
    free = all(rule == _FREE for rule in rules)
    return Drafts(tuple(guesses[: len(rules)]), () if free else tuple(rules))


def _ends_thinking(seq: Sequence, tracker: ReasoningTracker, token_id: int, num_output: int) -> bool:
    """Read a guess; whether tokens of ours come behind it."""
    lands = tracker.lands(token_id) is not None
    tracker.feed(token_id)
    return lands or tracker.budget_spent or (tracker.is_open and num_output in seq.closed_before)


def _turns(seq: Sequence, grammar: AnswerGrammar) -> bool:
    """Whether what the grammar has just read is whole, leads to it, or leaves no choice."""
    if grammar.whole or grammar.turns:
        return True
    if not grammar.governs:
        return False
    return bool(jump_of(seq, grammar)) or grammar.allowed() is None


def _rules(
    seq: Sequence, tracker: ReasoningTracker | None, grammar: AnswerGrammar | None, token_ids: Seq[int]
) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    if tracker is not None:
        landing = tracker.landing(seq.num_pending)
        if landing[0] >= 0:
            rules["landing_id"], rules["landing_bias"] = landing
    barred = seq.bad_words.forbidden(token_ids, seq.num_prompt_tokens) if seq.bad_words is not None else ()
    if tracker is not None:
        barred = (*barred, *tracker.barred(seq.num_pending))
    if grammar is None:
        pass
    elif grammar.governs:
        rules["allow_bitmask"] = grammar.allowed() or b""
    elif tracker is None or not tracker.stop_closes:
        barred = (*barred, *seq.stop.own_ids)  # the answer is still to come
    if barred:
        rules["barred_ids"] = barred
    return rules

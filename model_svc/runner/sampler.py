"""From logits to tokens: penalties, biases and masks of the rows that ask for them, the draw, log-probabilities.

Log-probabilities are those of the model, before penalties and masks, as clients compare them between requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.finite import all_finite
from kernels.logprobs import top_logprobs
from kernels.penalties import Penalties, apply_penalties
from kernels.sample import sample
from model_svc.engine.plan import SequenceStep
from model_svc.runner.slots import FREQUENCY, MIN_P, PRESENCE, REPETITION, TEMPERATURE, TOP_P, Extras, Slots
from model_svc.runner.staging import send

MAX_TOP_LOGPROBS = 128  # of the kernel


@dataclass(frozen=True)
class TopLogprobs:
    """Log-probabilities of the rows `rows`: of the chosen token, and of the `counts` best ones asked for."""

    rows: list[int]
    counts: list[int]
    chosen: Tensor
    ids: Tensor
    values: Tensor


@dataclass(frozen=True)
class Drawn:
    """The outcome of a step, still on the device: tokens [R], whether each row's logits were finite [R].

    A row of which masks and held stop ids leave no token counts as one that was not.
    `state` [R] names the lines in which tokens are counted for penalties; None if nobody needs it.
    """

    tokens: Tensor
    finite: Tensor
    state: Tensor | None = None
    top: TopLogprobs | None = None


def draw(
    logits: Tensor, slots: Slots, items: Sequence[SequenceStep], sample_slots: Tensor, output_index: Tensor
) -> Drawn:
    """Draw a token for each of the R rows of float32 `logits` [R, V]; `logits` is changed."""
    finite = all_finite(logits)
    extras = [slots.extras.get(item.slot) for item in items]
    asking = [n for n, extra in enumerate(extras) if extra is not None and extra.num_top is not None]
    raw = logits[_longs(asking, logits)] if asking else None
    params = slots.params[:, sample_slots].contiguous()
    masks = [_mask(item, extra, slots.vocab_size) for item, extra in zip(items, extras, strict=True)]
    stops = [_held_stops(item, extra) for item, extra in zip(items, extras, strict=True)]
    stuck = [n for n, mask in enumerate(masks) if _leaves_nothing(mask, stops[n], slots.vocab_size)]
    if stuck:
        finite[_longs(stuck, logits)] = False
    penalties = _penalties(slots, items, extras, params, masks, stops)
    if penalties is not None:
        apply_penalties(logits, penalties)
    if any(item.landing_id >= 0 for item in items):
        _land(logits, slots, items)
    tokens = sample(
        logits,
        params[TEMPERATURE],
        slots.top_k[sample_slots],
        params[TOP_P],
        params[MIN_P],
        slots.seeds[sample_slots],
        output_index.long(),
    )
    top = None if raw is None else _top_logprobs(raw, tokens, asking, extras)
    return Drawn(tokens, finite, None if penalties is None else penalties.state, top)


def _land(logits: Tensor, slots: Slots, items: Sequence[SequenceStep]) -> None:
    """Make the end of thinking likelier; where the last token is not known to the host, only if it ended a sentence.

    A forbidden token stays so: -inf plus a finite bias. `forced_id` never comes together with a landing.
    """
    landing = [(n, item) for n, item in enumerate(items) if item.landing_id >= 0]
    numbers = [[n, item.landing_id, item.slot, item.from_device] for n, item in landing]
    rows, ids, where, unknown = send(np.array(numbers, dtype=np.int64).T.copy(), logits.device).unbind(0)
    bias = send(np.array([item.landing_bias for _, item in landing], dtype=np.float32), logits.device)
    if slots.sentence_ends is not None:
        bias = bias * (slots.sentence_ends[slots.last_token[where].long()] | (unknown == 0))
    logits[rows, ids] += bias


def _top_logprobs(raw: Tensor, tokens: Tensor, rows: list[int], extras: Sequence[Extras | None]) -> TopLogprobs:
    counts = [extra.num_top or 0 for n in rows if (extra := extras[n]) is not None]
    chosen = tokens[_longs(rows, tokens)]
    return TopLogprobs(rows, counts, *top_logprobs(raw, chosen, min(max(counts), MAX_TOP_LOGPROBS, raw.shape[1])))


def _penalties(
    slots: Slots,
    items: Sequence[SequenceStep],
    extras: Sequence[Extras | None],
    params: Tensor,
    masks: Sequence[np.ndarray | None],
    stops: Sequence[Sequence[int]],
) -> Penalties | None:
    """Collect what the step's rows ask for; None (the usual case) if they ask for nothing."""
    fields: dict[str, Any] = {}
    if any(extra is not None and extra.penalized for extra in extras):
        mask, counts = slots.tables()
        lines = [
            item.slot if extra is not None and extra.penalized else -1
            for item, extra in zip(items, extras, strict=True)
        ]
        state = _ints(lines, params)
        if any(item.num_drafts for item in items):
            mask, counts, state = _behind_guesses(mask, counts, state, items)
        fields |= {"state": state, "prompt_mask": mask, "output_counts": counts}
        names = {"presence": PRESENCE, "frequency": FREQUENCY, "repetition": REPETITION}
        fields |= {name: params[row] for name, row in names.items()}
    if any(extra is not None and extra.bias for extra in extras):
        biases = [extra.bias if extra is not None else {} for extra in extras]
        fields["bias_ids"] = _ints(_padded([list(bias) for bias in biases], -1), params)
        values = np.array(_padded([list(bias.values()) for bias in biases], 0.0), dtype=np.float32)
        fields["bias"] = send(values, params.device)
    if any(stops):
        fields["hold_stops"] = _ints([bool(held) for held in stops], params)
        fields["stop_ids"] = _ints(_padded([list(held) for held in stops], -1), params)
    present = np.array([mask is not None for mask in masks])
    if present.any():
        fields["grammar"] = _ints(np.where(present, present.cumsum() - 1, -1), params)
        fields["allowed"] = send(np.stack([mask for mask in masks if mask is not None]), params.device)
    if any(item.forced_id >= 0 for item in items):
        fields["forced"] = _ints([item.forced_id for item in items], params)
    return Penalties(**fields) if fields else None


def _behind_guesses(
    mask: Tensor, counts: Tensor, state: Tensor, items: Sequence[SequenceStep]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tables with a line for each draw, which counts the guesses before it, too; few steps need them."""
    lines = state.clamp(min=0).long()
    mask, counts = mask[lines], counts[lines]
    pairs = [
        (n, token)
        for n, item in enumerate(items)
        for token in np.frombuffer(item.token_ids, np.int32)[: item.num_drafts]
    ]
    rows, ids = send(np.array(pairs, dtype=np.int64).T.copy(), state.device).unbind(0)
    counts.index_put_((rows, ids), torch.ones_like(rows, dtype=counts.dtype), accumulate=True)
    own = torch.arange(len(items), dtype=torch.int32, device=state.device)
    return mask, counts, torch.where(state >= 0, own, -1)


def _mask(item: SequenceStep, extra: Extras | None, vocab_size: int) -> np.ndarray | None:
    """Return what a row may draw: what the sequence and its grammar both allow, less what is barred in this step."""
    mask = extra.allowed if extra is not None else None
    if item.allow_bitmask:
        grammar = np.frombuffer(item.allow_bitmask, dtype=np.int32)
        mask = grammar if mask is None else mask & grammar
    if item.barred_ids:
        mask = np.full(-(-vocab_size // 32), -1, dtype=np.int32) if mask is None else mask.copy()
        ids = np.array(item.barred_ids)
        np.bitwise_and.at(mask, ids // 32, ~(1 << (ids % 32)).astype(np.uint32).view(np.int32))
    return mask


def _held_stops(item: SequenceStep, extra: Extras | None) -> Sequence[int]:
    """Return the stop ids that may not be drawn yet."""
    return extra.stop_ids if extra is not None and item.output_index < extra.min_tokens else ()


def _leaves_nothing(mask: np.ndarray | None, stops: Sequence[int], vocab_size: int) -> bool:
    """Whether a row has no token left: whatever were drawn, the first stop id perhaps, would break a rule."""
    if mask is None:
        return len(stops) >= vocab_size
    if not stops and vocab_size % 32 == 0:
        return not mask.any()
    left = np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size]
    left[list(stops)] = 0
    return not left.any()


def _ints(values: Any, like: Tensor) -> Tensor:
    return send(np.array(values, dtype=np.int32), like.device)


def _longs(values: list[int], like: Tensor) -> Tensor:
    return send(np.array(values, dtype=np.int64), like.device)


def _padded(rows: list[list[Any]], filler: Any) -> list[list[Any]]:
    width = max(map(len, rows))
    return [row + [filler] * (width - len(row)) for row in rows]

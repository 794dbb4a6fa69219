"""The draws of a step: one for each sequence that samples, more where guesses are checked.

All draws of a sequence are made at once, each as if the guesses before it had been drawn; which of them count is known
afterwards. On the device only penalties must know (they count what was drawn), the rest is read by the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from kernels.penalties import count_tokens
from model_svc.engine.plan import DrawRules, SequenceStep
from model_svc.runner.sampler import Drawn, draw
from model_svc.runner.slots import Slots
from model_svc.runner.staging import send

_FREE = DrawRules()


def drafts(items: Sequence[SequenceStep]) -> bool:
    """Tell whether any guesses are to be checked."""
    return any(item.num_drafts for item in items)


def guesses(item: SequenceStep) -> np.ndarray:
    """Return the guesses of a share, int32."""
    whole = np.frombuffer(item.token_ids, dtype=np.int32)
    return whole[len(whole) - item.num_drafts :]


def draws_of(sequences: Sequence[SequenceStep]) -> list[tuple[int, int, int]]:
    """Return the token row, the slot and the output index of each draw of a step."""
    draws: list[tuple[int, int, int]] = []
    end = 0
    for item in sequences:
        end += item.num_tokens
        if item.sample:
            first = end - 1 - item.num_drafts
            draws += [(first + n, item.slot, item.output_index + n) for n in range(1 + item.num_drafts)]
    return draws


def each_draw(items: Sequence[SequenceStep]) -> list[SequenceStep]:
    """Return a share for each draw: behind guesses, `token_ids` are these and `num_drafts` says how many."""
    draws: list[SequenceStep] = []
    for item in items:
        if not item.num_drafts:
            draws.append(item)
            continue
        packed = guesses(item).tobytes()
        for n in range(item.num_drafts + 1):
            fields: dict[str, Any] = {}
            if n:  # the share's own rules are those of its first draw alone
                rules = item.later_rules[n - 1] if item.later_rules else _FREE
                fields = {name: getattr(rules, name) for name in rules.__struct_fields__}
            draws.append(
                msgspec.structs.replace(
                    item, output_index=item.output_index + n, token_ids=packed[: 4 * n], num_drafts=n, **fields
                )
            )
    return draws


def draw_all(logits: Tensor, slots: Slots, items: Sequence[SequenceStep], where: Tensor, output_index: Tensor) -> Drawn:
    """Draw for each row of `logits` [R, V], R being the draws of `items`, and note in the slots what was drawn."""
    if not drafts(items):
        drawn = draw(logits, slots, items, where, output_index)
        slots.record(where, drawn.state, drawn.tokens)
        return drawn
    drawn = draw(logits, slots, each_draw(items), where, output_index)
    slots.record(where, None, drawn.tokens)  # a slot with guesses is given its next token by the host
    if drawn.state is not None:
        _count(drawn.tokens, slots, items)
    return drawn


def _count(tokens: Tensor, slots: Slots, items: Sequence[SequenceStep]) -> None:
    """Count the draws that hold, all behind guesses that came true, for sequences with penalties."""
    extras = [slots.extras.get(item.slot) for item in items]
    lines = [item.slot if extra and extra.penalized else -1 for item, extra in zip(items, extras, strict=True)]
    lengths = np.array([item.num_drafts + 1 for item in items])
    begins = np.cumsum(lengths) - lengths
    width = int(lengths.max())
    expected = np.full((len(items), width), -1, dtype=np.int64)  # the guess that was computed behind each draw
    for line, item in zip(expected, items, strict=True):
        line[: item.num_drafts] = guesses(item)
    columns = np.minimum(np.arange(width), lengths[:, None] - 1)
    rows = send(begins[:, None] + columns, tokens.device)
    drawn = tokens[rows]
    right = drawn == send(expected, tokens.device)
    holds = torch.ones_like(right)
    holds[:, 1:] = right[:, :-1].cumprod(-1).bool()
    state = send(np.array(lines, dtype=np.int32), tokens.device)
    count_tokens(slots.tables()[1], state, torch.where(holds, drawn, -1))

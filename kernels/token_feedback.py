"""Ends a step on the device: the drawn tokens become the next step's input, and each row says whether it was sound.

A row is sound if its hidden state and the logit of its token are finite: whatever goes wrong in a layer reaches the
hidden state, and an infinite logit is the one that is drawn. Looking at all logits would read them once more.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dependent, dispatch
from kernels.dependent import follow
from kernels.language import jit_alike, next_power_of_2, tl


def token_feedback(
    tokens: Tensor, logits: Tensor, hidden: Tensor, slots: Tensor, counters: Tensor, state: Tensor, out: Tensor
) -> None:
    """Write `tokens` int64 [S] to column 0 of `state` [slots, W] int32 and to `out` int32 [S]; -1 there: not sound.

    `logits` [S, V], `hidden` [S, E], `slots` int32 [S], `counters` int64 [S]; rows with either below 0 do not count.
    """
    S = tokens.shape[0]
    for name, tensor in (("logits", logits), ("hidden", hidden), ("slots", slots), ("counters", counters)):
        if tensor.shape[0] != S:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must have {S} rows")
    if dispatch.form(logits) == "triton":
        if S:
            _token_feedback_kernel[(S,)](
                tokens, logits, logits.stride(0), hidden, hidden.stride(0), hidden.shape[1], slots, counters, state,
                state.stride(0), out, BLOCK=min(4096, next_power_of_2(hidden.shape[1])), num_warps=4,
                **dependent.launch(logits),
            )  # fmt: skip
        return
    reference(tokens, logits, hidden, slots, counters, state, out)


def reference(
    tokens: Tensor, logits: Tensor, hidden: Tensor, slots: Tensor, counters: Tensor, state: Tensor, out: Tensor
) -> None:
    """Feed back with plain torch."""
    sound = torch.isfinite(hidden).all(-1) & torch.isfinite(logits.gather(1, tokens[:, None])[:, 0])
    out[: len(tokens)] = torch.where(sound, tokens, -1).int()
    rows = ((slots >= 0) & (counters >= 0)).nonzero()[:, 0]
    state[slots[rows].long(), 0] = tokens[rows].int()


@jit_alike("slots_ptr")
def _token_feedback_kernel(
    tokens_ptr, logits_ptr, logits_stride, hidden_ptr, hidden_stride, E, slots_ptr, counters_ptr, state_ptr,
    state_stride, out_ptr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens_ptr + row)
    bad = tl.zeros([BLOCK], tl.int32)
    for base in range(0, E, BLOCK):
        column = base + tl.arange(0, BLOCK)
        x = tl.load(hidden_ptr + row * hidden_stride + column, mask=column < E, other=0.0).to(tl.float32)
        bad += (x - x != 0).to(tl.int32)
    x = tl.load(logits_ptr + row * logits_stride + token).to(tl.float32)
    sound = (tl.sum(bad, 0) == 0) & (x - x == 0)
    tl.store(out_ptr + row, tl.where(sound, token, -1).to(tl.int32))
    slot = tl.load(slots_ptr + row).to(tl.int64)
    live = (slot >= 0) & (tl.load(counters_ptr + row) >= 0)
    tl.store(state_ptr + slot * state_stride, token.to(tl.int32), mask=live)
